"""From the `data` keys to an open pyramid, making it first where that is needed."""

import re
import sys
from hashlib import sha256
from pathlib import Path

from pggan.config import DataConfig
from pggan.core.errors import UserError
from pggan.data.format.index import levels_up_to
from pggan.data.format.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.prepare.command import default_workers, open_sources, prepare
from pggan.data.prepare.planning import Options
from pggan.data.sources.avatars import render_avatars
from pggan.data.sources.torchvision_sets import NamedSet

FEWEST_IMAGES = 2
KEYS = {"max_resolution=": "schedule.final_resolution=", "channels=": "data.channels=", "labels=": "data.labels="}


def open_data(config: DataConfig, resolution: int, batch: int = 1) -> ImagePyramid:
    """The pyramid to train on up to `resolution`, with at least `batch` images.

    Images that are not prepared yet are prepared, and avatars rendered, once, into the cache.
    Raises UserError when the path is wrong, when its images are too small or too few, or changed since they were
    prepared.
    """
    if config.path is None:
        pyramid = _avatars(config, resolution)
    elif (Path(config.path) / INDEX_FILE).is_file():
        pyramid = ImagePyramid(Path(config.path))
    else:
        pyramid = _prepared(config, resolution)
    name = config.path or pyramid.path  # as the user calls it
    if pyramid.resolution < resolution:
        raise UserError(
            f"{name} goes up to {pyramid.resolution}x{pyramid.resolution}; "
            f"schedule.final_resolution={resolution} is above that.",
            f"Lower schedule.final_resolution to {pyramid.resolution}, or prepare larger images.",
        )
    if pyramid.images < max(batch, FEWEST_IMAGES):
        raise UserError(
            f"{name} has {pyramid.images} image{'s' * (pyramid.images != 1)}; "
            f"{max(batch, FEWEST_IMAGES)} are needed for a batch of {batch}.",
            "Give more images, or lower schedule.batch." if batch > FEWEST_IMAGES else "Give more images.",
        )
    if config.labels and pyramid.labels is None:
        raise UserError(f"data.labels=true, but {name} has no labels.", "Prepare it with labels=true.")
    if config.verify:
        pyramid.verify(levels_up_to(resolution))
    return pyramid


def _avatars(config: DataConfig, resolution: int) -> ImagePyramid:
    cached = Path(config.cache) / f"avatars-{config.style}-{config.count}-{resolution}px"
    if not cached.exists():
        render_avatars(cached, style=config.style, count=config.count, resolution=resolution, workers=default_workers())
    return ImagePyramid(cached)


def in_keys_of_training(text: str) -> str:
    """What is said of the keys of `pggan prepare`, for those who train."""
    for key, own in KEYS.items():
        text = re.sub(rf"(?<![\w.]){key}", own, text)
    return text


def _prepared(config: DataConfig, resolution: int) -> ImagePyramid:
    """The pyramid of images that are not prepared, named after what they are so that a change is noticed."""
    source = open_sources(config.path, NamedSet(Path(config.cache) / "downloads", "train", download=True))
    files = [(entry.name, entry.stamp) for entry in source.entries()]
    digest = sha256(repr((files, config.crop, config.channels, config.labels)).encode()).hexdigest()[:12]
    cache = Path(config.cache)
    name = f"{Path(str(source.description['name'])).name}-{resolution}px"
    cached = cache / f"{name}-{digest}"
    if not cached.exists():
        if files:
            print(f"Preparing {config.path}, once, into {cached}.", file=sys.stderr)
        before = sorted(path for path in cache.glob("*") if path.name.startswith(f"{name}-"))
        try:
            options = Options(
                max_resolution=resolution, channels=config.channels, crop=config.crop.value, labels=config.labels
            )
            prepare(source, cached, options, workers=default_workers(), reuse=before)
        except UserError as error:
            raise UserError(*(in_keys_of_training(text) for text in (error.problem, error.remedy))) from error
    return ImagePyramid(cached)
