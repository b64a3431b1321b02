"""The places of images in the shards of a dataset, written and read by several processes at once."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pggan.data.format.index import Index, levels_up_to
from pggan.data.format.levels import Images

SHARD_BYTES = 2**30
BLOCK_BYTES = 512  # of a file's status
MOST_OPEN_FILES = 512


class Shard(NamedTuple):
    """One file of a level: the number of its first image among all, and how many it holds."""

    file: str
    first: int
    images: int


class Layout(NamedTuple):
    """Where the images of a dataset are: per level, highest first, the resolution and its shards."""

    directory: Path
    channels: int
    levels: tuple[tuple[int, tuple[Shard, ...]], ...]

    def write(self, slot: int, levels: Sequence[Images]) -> None:
        """Write image number `slot`, given at every level, into its place."""
        for (resolution, shards), pixels in zip(self.levels, levels, strict=True):
            descriptor, offset = self._place(resolution, shards, slot)
            content = memoryview(pixels.data).cast("B")
            while len(content):  # a nearly full disk takes a part, then refuses
                written = os.pwrite(descriptor, content, offset)
                content, offset = content[written:], offset + written

    def read(self, slot: int) -> list[Images]:
        """Image number `slot` at every level.  Raises EOFError where a file is too short."""
        found = []
        for resolution, shards in self.levels:
            descriptor, offset = self._place(resolution, shards, slot)
            content = os.pread(descriptor, self._image_bytes(resolution), offset)
            if len(content) < self._image_bytes(resolution):
                raise EOFError(f"{self.directory}: no image {slot} at {resolution}x{resolution}")
            found.append(np.frombuffer(content, np.uint8).reshape(resolution, resolution, self.channels))
        return found

    def paths(self) -> list[Path]:
        """All shards."""
        return [self.directory / shard.file for _, shards in self.levels for shard in shards]

    def stored_bytes(self) -> int:
        """The bytes that existing shards take on the disk."""
        return sum(path.stat().st_blocks * BLOCK_BYTES for path in self.paths() if path.exists())

    def resize(self) -> None:
        """Create every shard or change it to its size; what is added takes no space until it is written."""
        for resolution, shards in self.levels:
            for shard in shards:
                with (self.directory / shard.file).open("ab") as file:
                    file.truncate(shard.images * self._image_bytes(resolution))

    def _image_bytes(self, resolution: int) -> int:
        return resolution * resolution * self.channels

    def _place(self, resolution: int, shards: tuple[Shard, ...], slot: int) -> tuple[int, int]:
        """The open file and the offset of an image."""
        shard = shards[bisect_right(shards, slot, key=lambda shard: shard.first) - 1]
        return _descriptor(self.directory / shard.file), (slot - shard.first) * self._image_bytes(resolution)


def new_layout(directory: Path, resolution: int, channels: int, images: int, generation: str = "") -> Layout:
    """The layout of a new dataset of `images` images.

    generation: a part of every file name that differs from that of the files which these are to replace.
    """
    levels = []
    for level in reversed(levels_up_to(resolution)):
        per_shard = max(1, SHARD_BYTES // (level * level * channels))
        shards = tuple(
            Shard(f"r{level:04d}-{number:05d}{generation}.bin", first, min(per_shard, images - first))
            for number, first in enumerate(range(0, images, per_shard))
        )
        levels.append((level, shards))
    return Layout(directory, channels, tuple(levels))


def layout_of(directory: Path, index: Index) -> Layout:
    """The layout of an existing dataset."""
    levels = []
    for level, files in sorted(index.levels.items(), reverse=True):
        shards, first = [], 0
        for file in files:
            shards.append(Shard(file.file, first, file.images))
            first += file.images
        levels.append((level, tuple(shards)))
    return Layout(directory, index.channels, tuple(levels))


_open_files: dict[Path, int] = {}


def _descriptor(path: Path) -> int:
    """An open file of this process, for reading and, where allowed, writing."""
    if path not in _open_files:
        if len(_open_files) >= MOST_OPEN_FILES:
            os.close(_open_files.pop(next(iter(_open_files))))
        _open_files[path] = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    return _open_files[path]


def close_files() -> None:
    """Close the shards that this process has open, as is needed before files are renamed or removed."""
    while _open_files:
        os.close(_open_files.popitem()[1])
