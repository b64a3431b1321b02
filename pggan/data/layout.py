"""The places of images in the shards of a dataset, written and read by several processes at once."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from pggan.data.index import levels_up_to
from pggan.data.levels import Images

SHARD_BYTES = 2**30  # a part of the format: images are found in existing datasets by it
BLOCK_BYTES = 512  # of a file's status
MAX_OPEN_FILES = 512


class Shard(NamedTuple):
    """One file of level `resolution`."""

    path: Path
    resolution: int
    images: int
    bytes: int


class Layout(NamedTuple):
    """The places of a dataset's images in its files.

    generation: a part of every file name that differs from that of the files which these are to replace.
    """

    directory: Path
    resolution: int
    channels: int
    images: int
    generation: str = ""

    def shards(self) -> list[Shard]:
        """All files, those of the highest level first."""
        found = []
        for level in reversed(levels_up_to(self.resolution)):
            most = self._images_per_shard(level)
            for first in range(0, self.images, most):
                images = min(most, self.images - first)
                found.append(Shard(self._path(level, first), level, images, images * self._image_bytes(level)))
        return found

    def write(self, slot: int, levels: Sequence[Images]) -> None:
        """Write image number `slot`, given at every level, highest first, into its place."""
        for pixels in levels:
            descriptor, offset = self._place(len(pixels), slot)
            content = memoryview(pixels.data).cast("B")
            while len(content):  # a nearly full disk takes a part, then refuses
                written = os.pwrite(descriptor, content, offset)
                content, offset = content[written:], offset + written

    def read(self, slot: int) -> list[Images]:
        """Image number `slot` at every level, highest first.  Raises EOFError where a file is too short."""
        found = []
        for level in reversed(levels_up_to(self.resolution)):
            descriptor, offset = self._place(level, slot)
            content = os.pread(descriptor, self._image_bytes(level), offset)
            if len(content) < self._image_bytes(level):
                raise EOFError(f"{self.directory}: no image {slot} at {level}x{level}")
            found.append(np.frombuffer(content, np.uint8).reshape(level, level, self.channels))
        return found

    def stored_bytes(self) -> int:
        """The bytes that existing shards take on the disk."""
        return sum(shard.path.stat().st_blocks * BLOCK_BYTES for shard in self.shards() if shard.path.exists())

    def resize(self) -> None:
        """Create every shard or change it to its size; what is added takes no space until it is written."""
        for shard in self.shards():
            with shard.path.open("ab") as file:
                file.truncate(shard.bytes)

    def _image_bytes(self, level: int) -> int:
        return level * level * self.channels

    def _images_per_shard(self, level: int) -> int:
        return max(1, SHARD_BYTES // self._image_bytes(level))

    def _path(self, level: int, slot: int) -> Path:
        return self.directory / f"r{level:04d}-{slot // self._images_per_shard(level):05d}{self.generation}.bin"

    def _place(self, level: int, slot: int) -> tuple[int, int]:
        """The open file and the offset of an image."""
        return _descriptor(self._path(level, slot)), slot % self._images_per_shard(level) * self._image_bytes(level)


_open_files: dict[Path, int] = {}


def _descriptor(path: Path) -> int:
    """An open file of this process, for reading and, where allowed, writing."""
    if path not in _open_files:
        if len(_open_files) >= MAX_OPEN_FILES:
            os.close(_open_files.pop(next(iter(_open_files))))
        _open_files[path] = os.open(path, os.O_RDWR if os.access(path, os.W_OK) else os.O_RDONLY)
    return _open_files[path]


def close_files() -> None:
    """Close the shards that this process has open, as is needed before files are renamed or removed."""
    while _open_files:
        os.close(_open_files.popitem()[1])
