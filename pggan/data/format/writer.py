"""The index of a dataset whose shards are complete, and small datasets written in one call."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pggan.core.atomic_io import file_sha256, fsync_path
from pggan.data.format.index import LABEL_BYTES, Index, StoredFile
from pggan.data.format.layout import Layout, close_files, new_layout
from pggan.data.format.levels import Images, all_levels
from pggan.data.format.pyramid import INDEX_FILE, ImagePyramid


def make_index(
    layout: Layout,
    checksums: Iterable[str],
    source: dict[str, Any],
    *,
    class_names: Sequence[str] | None = None,
    labels: Sequence[int] = (),
    generation: str = "",
) -> Index:
    """The index of a dataset whose shards are written; writes the labels file, durably.

    checksums: SHA-256 of the shards, in the order of `layout.paths()`.
    source: how the images were made; with `class_names`, every image has a label, an index into them.
    generation: a part of the name of the labels file.
    """
    sums = iter(checksums)
    levels = {
        level: [
            StoredFile(shard.file, shard.images, shard.images * level * level * layout.channels, next(sums))
            for shard in shards
        ]
        for level, shards in layout.levels
    }
    labels_file = None
    if class_names is not None:
        path, content = layout.directory / f"labels{generation}.bin", np.array(labels, "<i8").tobytes()
        assert len(content) == LABEL_BYTES * len(labels), "one number each"
        path.write_bytes(content)
        fsync_path(path)
        labels_file = StoredFile(path.name, len(labels), len(content), hashlib.sha256(content).hexdigest())
    return Index(
        images=sum(shard.images for shard in layout.levels[0][1]),
        channels=layout.channels,
        resolution=layout.levels[0][0],
        labels=None if class_names is None else list(class_names),
        labels_file=labels_file,
        levels=dict(reversed(levels.items())),
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
    layout = new_layout(destination, images[0].shape[0], images[0].shape[2], len(images))
    layout.resize()
    for slot, image in enumerate(images):
        layout.write(slot, all_levels(image))
    close_files()
    index = make_index(layout, map(file_sha256, layout.paths()), source, class_names=class_names, labels=labels)
    (destination / INDEX_FILE).write_bytes(index.to_json())
    return ImagePyramid(destination)
