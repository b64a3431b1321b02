"""Small pyramids of given images, written in one call."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pggan.data.pyramid import ImagePyramid, Images
from pggan.data.writer import Layout, write_index


def write_pyramid(destination: Path, images: Sequence[Images], source: dict[str, Any], **labels: Any) -> ImagePyramid:
    """Write images, each [R, R, C]; `labels` as for `write_index`."""
    destination.mkdir(parents=True)
    layout = Layout(destination, images[0].shape[0], images[0].shape[2], len(images))
    layout.create()
    for slot, image in enumerate(images):
        layout.write(slot, image)
    write_index(layout, source, **labels)
    return ImagePyramid(destination)
