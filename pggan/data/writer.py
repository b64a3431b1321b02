"""Pyramids written: the places of images in shards, filled by several processes at once, and the index over them."""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pggan.data.levels import Images
from pggan.data.pyramid import INDEX_FILE, LABEL_BYTES, Index, StoredFile, levels_up_to

SHARD_BYTES = 2**30  # a part of the format: images are found in existing datasets by it
MAX_OPEN_FILES = 512
LABELS_FILE = "labels.bin"


class Shard(NamedTuple):
    """One file of level `resolution`."""

    path: Path
    resolution: int
    images: int
    bytes: int


class Layout(NamedTuple):
    """The places of a dataset's images in its files."""

    directory: Path
    resolution: int
    channels: int
    images: int

    def shards(self) -> list[Shard]:
        """All files, those of the highest level first."""
        found = []
        for level in reversed(levels_up_to(self.resolution)):
            most = self._images_per_shard(level)
            for first in range(0, self.images, most):
                images = min(most, self.images - first)
                found.append(Shard(self._path(level, first), level, images, images * self._image_bytes(level)))
        return found

    def resize(self) -> None:
        """Create every shard or change it to its size, and remove others; new bytes take no space until written."""
        close_files()
        shards = self.shards()
        for path in {*self.directory.glob("r*.bin")} - {shard.path for shard in shards}:
            path.unlink()
        for shard in shards:
            with shard.path.open("ab") as file:
                file.truncate(shard.bytes)

    def write(self, slot: int, levels: Sequence[Images]) -> None:
        """Write image number `slot`, given at every level, highest first, into its place."""
        for pixels in levels:
            descriptor, offset = self._place(len(pixels), slot)
            content = memoryview(pixels.data).cast("B")
            while len(content):  # a nearly full disk takes a part, then refuses
                written = os.pwrite(descriptor, content, offset)
                content, offset = content[written:], offset + written

    def read(self, slot: int) -> list[Images]:
        """Image number `slot` at every level, highest first."""
        found = []
        for level in reversed(levels_up_to(self.resolution)):
            descriptor, offset = self._place(level, slot)
            content = os.pread(descriptor, self._image_bytes(level), offset)
            found.append(np.frombuffer(content, np.uint8).reshape(level, level, self.channels))
        return found

    def _image_bytes(self, level: int) -> int:
        return level * level * self.channels

    def _images_per_shard(self, level: int) -> int:
        return max(1, SHARD_BYTES // self._image_bytes(level))

    def _path(self, level: int, slot: int) -> Path:
        return self.directory / f"r{level:04d}-{slot // self._images_per_shard(level):05d}.bin"

    def _place(self, level: int, slot: int) -> tuple[int, int]:
        """The open file and the offset of an image."""
        return _descriptor(self._path(level, slot)), slot % self._images_per_shard(level) * self._image_bytes(level)


_open_files: dict[Path, int] = {}


def _descriptor(path: Path) -> int:
    """A file of this process that stays open: opening it for every image would cost more than writing."""
    if path not in _open_files:
        if len(_open_files) >= MAX_OPEN_FILES:
            os.close(_open_files.pop(next(iter(_open_files))))
        _open_files[path] = os.open(path, os.O_RDWR)
    return _open_files[path]


def close_files() -> None:
    """Close the shards that this process has open."""
    while _open_files:
        os.close(_open_files.popitem()[1])


def write_index(
    layout: Layout,
    checksums: Iterable[str],
    source: dict[str, Any],
    *,
    class_names: Sequence[str] | None = None,
    labels: Sequence[int] = (),
) -> None:
    """Write the index of a dataset whose shards are complete, and its labels.

    checksums: SHA-256 of the shards, in the order of `layout.shards()`.
    source: how the images were made; with `class_names`, every image has a label, an index into them.
    """
    close_files()
    levels: dict[int, list[StoredFile]] = {level: [] for level in levels_up_to(layout.resolution)}
    for shard, checksum in zip(layout.shards(), checksums, strict=True):
        levels[shard.resolution].append(StoredFile(shard.path.name, shard.images, shard.bytes, checksum))
    labels_file = None
    if class_names is not None:
        content = np.array(labels, "<i8").tobytes()
        assert len(content) == LABEL_BYTES * layout.images, "one number each"
        (layout.directory / LABELS_FILE).write_bytes(content)
        labels_file = StoredFile(LABELS_FILE, len(labels), len(content), hashlib.sha256(content).hexdigest())
    index = Index(
        images=layout.images,
        channels=layout.channels,
        resolution=layout.resolution,
        class_names=None if class_names is None else list(class_names),
        labels_file=labels_file,
        levels=levels,
        source=source,
    )
    (layout.directory / INDEX_FILE).write_bytes(index.to_json())
