"""Write a pyramid: several processes write images into the shards, then one process writes the index."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pggan.data.pyramid import INDEX_FILE, LABEL_BYTES, Images, Index, StoredFile, checksums, levels_up_to

SHARD_BYTES = 2**30  # largest size of a shard; constant, so that the same images always make the same files
LABELS_FILE = "labels.bin"


class Layout(NamedTuple):
    """Where each image of a dataset lies: in which shard, and at which offset."""

    directory: Path
    resolution: int
    channels: int
    images: int

    def shards(self) -> dict[int, list[StoredFile]]:
        """The shards of each resolution; their checksums are still empty."""
        found: dict[int, list[StoredFile]] = {}
        for level in levels_up_to(self.resolution):
            most, size = self._images_per_shard(level), level * level * self.channels
            counts = [min(most, self.images - first) for first in range(0, self.images, most)]
            files = [(self._name(level, number), count) for number, count in enumerate(counts)]
            found[level] = [StoredFile(name, count, count * size, "") for name, count in files]
        return found

    def create(self) -> None:
        """Replace all shards by sparse files of full size, which take disk space only where images are written."""
        for path in self.directory.glob("r*.bin"):
            path.unlink()
        for shard in (shard for shards in self.shards().values() for shard in shards):
            with (self.directory / shard.file).open("wb") as file:
                file.truncate(shard.bytes)

    def write(self, slot: int, levels: Sequence[Images]) -> None:
        """Write one image as number `slot` of the dataset; `levels` are its pixels [R, R, C] at every resolution R."""
        for pixels in levels:
            number, place = divmod(slot, self._images_per_shard(len(pixels)))
            with open(f"{self.directory}/{self._name(len(pixels), number)}", "r+b") as file:
                file.seek(place * pixels.nbytes)
                file.write(pixels.data)

    def _images_per_shard(self, level: int) -> int:
        return max(1, SHARD_BYTES // (level * level * self.channels))

    def _name(self, level: int, number: int) -> str:
        return f"r{level:04d}-{number:05d}.bin"


def write_index(
    layout: Layout, source: dict[str, Any], *, class_names: list[str] | None = None, labels: Sequence[int] = ()
) -> None:
    """Write the labels and the index of a dataset whose shards are complete.

    source: where the images come from; labels: each image's index into `class_names`, empty if there are no classes.
    """
    shards = layout.shards()
    digests = checksums(layout.directory, [shard for files in shards.values() for shard in files])
    levels = {level: [replace(shard, sha256=next(digests)) for shard in files] for level, files in shards.items()}
    labels_file = None
    if class_names is not None:
        content = np.array(labels, "<i8").tobytes()
        assert len(content) == LABEL_BYTES * layout.images, "every image has one label"
        (layout.directory / LABELS_FILE).write_bytes(content)
        labels_file = StoredFile(LABELS_FILE, len(labels), len(content), hashlib.sha256(content).hexdigest())
    index = Index(layout.images, layout.channels, layout.resolution, class_names, labels_file, levels, source)
    (layout.directory / INDEX_FILE).write_bytes(index.to_json())
