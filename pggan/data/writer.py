"""Pyramids written: the places of images in shards, filled by several processes at once, and the index over them."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pggan.data.pyramid import INDEX_FILE, LABEL_BYTES, Images, Index, StoredFile, levels_up_to

SHARD_BYTES = 2**30  # a part of the format: images are found in existing datasets by it
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
            file = self._at(len(pixels), slot)
            file.write(pixels.data)
            file.flush()

    def read(self, slot: int) -> list[Images]:
        """Image number `slot` at every level, highest first."""
        found = []
        for level in reversed(levels_up_to(self.resolution)):
            content = self._at(level, slot).read(self._image_bytes(level))
            found.append(np.frombuffer(content, np.uint8).reshape(level, level, self.channels))
        return found

    def _image_bytes(self, level: int) -> int:
        return level * level * self.channels

    def _images_per_shard(self, level: int) -> int:
        return max(1, SHARD_BYTES // self._image_bytes(level))

    def _path(self, level: int, slot: int) -> Path:
        return self.directory / f"r{level:04d}-{slot // self._images_per_shard(level):05d}.bin"

    def _at(self, level: int, slot: int) -> BinaryIO:
        """The open shard, at the place of an image."""
        path = self._path(level, slot)
        if level not in _open or _open[level].name != path:
            if level in _open:
                _open[level].close()
            _open[level] = path.open("r+b")
        _open[level].seek(slot % self._images_per_shard(level) * self._image_bytes(level))
        return _open[level]


# The last shard of each level stays open in this process: opening it for every image would cost more than writing.
_open: dict[int, BinaryIO] = {}


def close_files() -> None:
    """Close the shards that this process has open."""
    while _open:
        _open.popitem()[1].close()


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
