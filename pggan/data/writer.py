"""The index of a dataset whose shards are complete, and small datasets written in one call."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pggan.core.atomic_io import file_sha256, fsync_path
from pggan.data.index import LABEL_BYTES, Index, StoredFile, levels_up_to
from pggan.data.layout import Layout, close_files
from pggan.data.levels import Images, all_levels
from pggan.data.pyramid import INDEX_FILE, ImagePyramid


def make_index(
    layout: Layout,
    checksums: Iterable[str],
    source: dict[str, Any],
    *,
    class_names: Sequence[str] | None = None,
    labels: Sequence[int] = (),
) -> Index:
    """The index of a dataset whose shards are written; writes the labels file, durably.

    checksums: SHA-256 of the shards, in the order of `layout.shards()`.
    source: how the images were made; with `class_names`, every image has a label, an index into them.
    """
    levels: dict[int, list[StoredFile]] = {level: [] for level in levels_up_to(layout.resolution)}
    for shard, checksum in zip(layout.shards(), checksums, strict=True):
        levels[shard.resolution].append(StoredFile(shard.path.name, shard.images, shard.bytes, checksum))
    labels_file = None
    if class_names is not None:
        path, content = layout.directory / f"labels{layout.generation}.bin", np.array(labels, "<i8").tobytes()
        assert len(content) == LABEL_BYTES * layout.images, "one number each"
        path.write_bytes(content)
        fsync_path(path)
        labels_file = StoredFile(path.name, len(labels), len(content), hashlib.sha256(content).hexdigest())
    return Index(
        images=layout.images,
        channels=layout.channels,
        resolution=layout.resolution,
        class_names=None if class_names is None else list(class_names),
        labels_file=labels_file,
        levels=levels,
        source=source,
    )


def write_pyramid(
    destination: Path,
    images: Sequence[Images],
    source: dict[str, Any],
    *,
    class_names: Sequence[str] | None = None,
    labels: Sequence[int] = (),
) -> ImagePyramid:
    """Write images, each [R, R, C], as a new dataset, for tests and measurements; `prepare` is for files of images.

    source: how the images were made; with `class_names`, every image has a label, an index into them.
    """
    destination.mkdir(parents=True)
    layout = Layout(destination, images[0].shape[0], images[0].shape[2], len(images))
    layout.resize()
    for slot, image in enumerate(images):
        layout.write(slot, all_levels(image))
    close_files()
    checksums = (file_sha256(shard.path) for shard in layout.shards())
    index = make_index(layout, checksums, source, class_names=class_names, labels=labels)
    (destination / INDEX_FILE).write_bytes(index.to_json())
    return ImagePyramid(destination)
