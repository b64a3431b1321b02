"""Write a dataset: several processes write images into the shards, then one process writes the index."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pggan.core.architecture import MIN_RESOLUTION, resolutions_between
from pggan.data.pyramid import (
    INDEX_FILE,
    LABEL_BYTES,
    LABELS_FILE,
    Images,
    Index,
    StoredFile,
    checksums,
    images_per_shard,
    shard_name,
    shards_of,
)


class Layout(NamedTuple):
    """The number and the size of a dataset's images, which determine the shard and the offset of each image."""

    directory: Path
    resolution: int
    channels: int
    images: int

    def shards(self) -> dict[int, list[StoredFile]]:
        levels = resolutions_between(MIN_RESOLUTION, self.resolution)
        return {level: [*shards_of(level, self.channels, self.images)] for level in levels}

    def create(self) -> None:
        """Replace all shards by sparse files of the final size, which take no disk space until images are written."""
        for path in self.directory.glob("r*.bin"):
            path.unlink()
        for shard in (shard for shards in self.shards().values() for shard in shards):
            with (self.directory / shard.file).open("wb") as file:
                file.truncate(shard.bytes)

    def write(self, slot: int, image: Images) -> None:
        """Write `image` [R, R, C] into the shards of all resolutions, as image number `slot`."""
        for pixels in all_levels(image):
            number, place = divmod(slot, images_per_shard(len(pixels), self.channels))
            with open(f"{self.directory}/{shard_name(len(pixels), number)}", "r+b") as file:
                file.seek(place * pixels.nbytes)
                file.write(pixels.data)


def write_index(
    layout: Layout, source: dict[str, Any], *, class_names: list[str] | None = None, labels: Sequence[int] = ()
) -> None:
    """Write the labels and the index when the shards are complete; `labels` are indices into `class_names`."""
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


def block_sums(image: NDArray[Any], resolution: int, kind: type[np.unsignedinteger[Any]] = np.uint32) -> NDArray[Any]:
    """Sum blocks of pixels: [H, W, C] to [resolution, resolution, C]; H and W are multiples of `resolution`."""
    height, width, channels = image.shape
    tall, wide = height // resolution, width // resolution
    rows = np.add(image[0::tall], image[1::tall] if tall > 1 else 0, dtype=kind)
    for offset in range(2, tall):
        rows += image[offset::tall]
    parts = rows.reshape(-1, wide * channels).T
    sums = np.empty((parts.shape[1], channels), kind)
    for channel in range(channels):  # summing the channels one after the other is faster than summing all at once
        np.add(parts[channel], parts[channel + channels] if wide > 1 else 0, out=sums[:, channel])
        for part in parts[channel + 2 * channels :: channels]:
            sums[:, channel] += part
    return sums.reshape(resolution, resolution, channels)


def block_mean(image: Images, resolution: int) -> Images:
    """Average blocks of pixels, rounded half up: [H, W, C] to [resolution, resolution, C]."""
    height, width, _ = image.shape
    if height == width == resolution << (height // resolution).bit_length() - 1:
        return all_levels(image, resolution)[-1]
    count = (height // resolution) * (width // resolution)
    dtype = np.uint32 if count < 2**23 else np.uint64  # larger blocks would overflow uint32
    doubled = 2 * block_sums(image, resolution, dtype)
    mean: Images = ((doubled + count) // (2 * count)).astype(np.uint8)
    return mean


def all_levels(image: Images, resolution: int = MIN_RESOLUTION) -> list[Images]:
    """Return the image [R, R, C] and its block averages with sides R/2, R/4 … `resolution`, rounded from exact sums."""
    levels, sums, bits = [np.ascontiguousarray(image)], image, 0  # a block holds 2^bits pixels
    while len(sums) > resolution:
        # The sum of up to 256 uint8 pixels, plus 128 for rounding, fits into uint16, which is twice as fast as uint32.
        sums, bits = block_sums(sums, len(sums) // 2, np.uint16 if bits + 2 <= 8 else np.uint32), bits + 2
        levels.append(((sums + sums.dtype.type(1 << (bits - 1))) >> bits).astype(np.uint8))
    return levels
