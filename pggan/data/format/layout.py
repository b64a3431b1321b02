"""Images written to and read from their places in the shards of a dataset, by several processes at once."""

import os
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pggan.data.format.index import Index, levels_up_to
from pggan.data.format.levels import Images
from pggan.data.format.writer import images_per_shard, shard_name

BLOCK_BYTES = 512  # of a file's status


class Shard(NamedTuple):
    """One file of a level: where its first image stands among all, and how many it holds."""

    file: str
    first: int
    images: int


class Layout(NamedTuple):
    """Which image lies where: per level, highest first, the resolution and its shards."""

    directory: Path
    channels: int
    levels: tuple[tuple[int, tuple[Shard, ...]], ...]

    def write(self, slot: int, levels: Sequence[Images]) -> None:
        """Put one image, given at every level, into its place."""
        for (resolution, shards), pixels in zip(self.levels, levels, strict=True):
            descriptor, offset = self._place(resolution, shards, slot)
            _write_all(descriptor, memoryview(pixels.data).cast("B"), offset)

    def read(self, slot: int) -> list[Images]:
        """One image at every level.  Raises EOFError where the file is too short."""
        found = []
        for resolution, shards in self.levels:
            descriptor, offset = self._place(resolution, shards, slot)
            size = resolution * resolution * self.channels
            content = os.pread(descriptor, size, offset)
            if len(content) < size:
                raise EOFError(f"{self.directory}: no image {slot} at {resolution}x{resolution}")
            found.append(np.frombuffer(content, np.uint8).reshape(resolution, resolution, self.channels))
        return found

    def paths(self) -> list[Path]:
        """All files."""
        return [self.directory / shard.file for _, shards in self.levels for shard in shards]

    def stored_bytes(self) -> int:
        """What the files that are there take on the disk."""
        return sum(path.stat().st_blocks * BLOCK_BYTES for path in self.paths() if path.exists())

    def resize(self) -> None:
        """Give every file its size; what is added is not stored until it is written."""
        for resolution, shards in self.levels:
            for shard in shards:
                with (self.directory / shard.file).open("ab") as file:
                    file.truncate(shard.images * resolution * resolution * self.channels)

    def _place(self, resolution: int, shards: tuple[Shard, ...], slot: int) -> tuple[int, int]:
        shard = shards[bisect_right(shards, slot, key=lambda shard: shard.first) - 1]
        offset = (slot - shard.first) * resolution * resolution * self.channels
        return _descriptor(self.directory / shard.file), offset


def new_layout(directory: Path, resolution: int, channels: int, images: int, generation: str = "") -> Layout:
    """Where `images` images go in a new dataset; `generation` is part of every file name."""
    levels = []
    for level in reversed(levels_up_to(resolution)):
        count = images_per_shard(level, channels)
        shards = tuple(
            Shard(shard_name(level, number, generation), first, min(count, images - first))
            for number, first in enumerate(range(0, images, count))
        )
        levels.append((level, shards))
    return Layout(directory, channels, tuple(levels))


def layout_of(directory: Path, index: Index) -> Layout:
    """Where the images of a dataset are."""
    levels = []
    for level, files in sorted(index.levels.items(), reverse=True):
        shards, first = [], 0
        for file in files:
            shards.append(Shard(file.file, first, file.images))
            first += file.images
        levels.append((level, tuple(shards)))
    return Layout(directory, index.channels, tuple(levels))


_open_files: dict[Path, int] = {}
MOST_OPEN_FILES = 512


def _descriptor(path: Path) -> int:
    """An open file of this process, for reading and, where allowed, writing."""
    if path not in _open_files:
        if len(_open_files) >= MOST_OPEN_FILES:
            os.close(_open_files.pop(next(iter(_open_files))))
        _open_files[path] = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    return _open_files[path]


def close_files() -> None:
    """Close what this process has open.  Needed before files are renamed or removed."""
    while _open_files:
        os.close(_open_files.popitem()[1])


def _write_all(descriptor: int, content: memoryview, offset: int) -> None:
    while len(content):  # a nearly full disk takes a part, then refuses
        written = os.pwrite(descriptor, content, offset)
        content, offset = content[written:], offset + written
