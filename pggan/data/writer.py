"""Pyramids written: the places of images in shards, filled by several processes at once, and the index over them."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from pggan.data.pyramid import INDEX_FILE, LABEL_BYTES, Images, Index, StoredFile, checksums, levels_up_to

SHARD_BYTES = 2**30  # a part of the format: images are found in existing datasets by it
LABELS_FILE = "labels.bin"


class Layout(NamedTuple):
    """The places of a dataset's images in its files; with 0 images, only their form."""

    directory: Path
    resolution: int
    channels: int
    images: int

    def shards(self) -> dict[int, list[StoredFile]]:
        """The files of each level, without checksums."""
        found: dict[int, list[StoredFile]] = {}
        for level in levels_up_to(self.resolution):
            most, size = self._images_per_shard(level), self._image_bytes(level)
            counts = [(first, min(most, self.images - first)) for first in range(0, self.images, most)]
            found[level] = [StoredFile(self._name(level, first), count, count * size, "") for first, count in counts]
        return found

    def resize(self) -> None:
        """Create every shard or change it to its size, and remove others; new bytes take no space until written."""
        close_files()
        sizes = {self.directory / shard.file: shard.bytes for shards in self.shards().values() for shard in shards}
        for path in {*self.directory.glob("r*.bin")} - sizes.keys():
            path.unlink()
        for path, size in sizes.items():
            with path.open("ab") as file:
                file.truncate(size)

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

    def _name(self, level: int, slot: int) -> str:
        return f"r{level:04d}-{slot // self._images_per_shard(level):05d}.bin"

    def _at(self, level: int, slot: int) -> BinaryIO:
        """The open shard, at the place of an image."""
        path = self.directory / self._name(level, slot)
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
    layout: Layout, source: dict[str, Any], *, class_names: list[str] | None = None, labels: Sequence[int] = ()
) -> None:
    """Write the index of a dataset whose shards are complete, and its labels.

    source: how the images were made; with `class_names`, every image has a label, an index into them.
    """
    close_files()
    shards = layout.shards()
    digests = checksums(layout.directory, [shard for files in shards.values() for shard in files])
    levels = {level: [replace(shard, sha256=next(digests)) for shard in files] for level, files in shards.items()}
    labels_file = None
    if class_names is not None:
        content = np.array(labels, "<i8").tobytes()
        assert len(content) == LABEL_BYTES * layout.images, "one number each"
        (layout.directory / LABELS_FILE).write_bytes(content)
        labels_file = StoredFile(LABELS_FILE, len(labels), len(content), hashlib.sha256(content).hexdigest())
    index = Index(layout.images, layout.channels, layout.resolution, class_names, labels_file, levels, source)
    (layout.directory / INDEX_FILE).write_bytes(index.to_json())
