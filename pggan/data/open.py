"""From the `data` keys to an open pyramid, which is made first where that is needed."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pggan.config import DataConfig
from pggan.core.errors import UserError
from pggan.data.data_sets import STYLE, AvatarSource, open_source
from pggan.data.prepare import Options, digest_of, prepare
from pggan.data.pyramid import INDEX_FILE, ImagePyramid, levels_up_to

MIN_IMAGES = 2
KEYS = {"max_resolution=": "schedule.final_resolution=", "channels=": "data.channels=", "labels=": "data.labels="}


def open_data(config: DataConfig, resolution: int, batch: int = 1, *, verify: bool = True) -> ImagePyramid:
    """The pyramid to train on up to `resolution`, with at least `batch` images.

    Images that are not prepared yet are prepared, and avatars drawn, once, into the cache.

    Args: verify: whether all files are compared with their checksums, which takes about a second per 2 GB.
    Raises UserError when the path is wrong, and for images that are too small, too few, or damaged since.
    """
    if config.path is not None and (Path(config.path) / INDEX_FILE).is_file():
        pyramid = ImagePyramid(Path(config.path))
    else:
        with _in_keys_of_training():
            pyramid = _prepared(config, config.path, resolution) if config.path else _avatars(config, resolution)
    name = config.path or pyramid.path  # as the user calls it
    if pyramid.resolution < resolution:
        raise UserError(
            f"{name} goes up to {pyramid.resolution}x{pyramid.resolution}; "
            f"schedule.final_resolution={resolution} is above that.",
            f"Lower schedule.final_resolution to {pyramid.resolution}, or prepare larger images.",
        )
    if pyramid.images < max(batch, MIN_IMAGES):
        raise UserError(
            f"{name} has {pyramid.images} image{'s' * (pyramid.images != 1)}; "
            f"{max(batch, MIN_IMAGES)} are needed for a batch of {batch}.",
            "Give more images, or lower schedule.batch." if batch > MIN_IMAGES else "Give more images.",
        )
    if config.channels not in (None, pyramid.channels):
        problem = f"data.channels={config.channels}, but the images in {name} have {pyramid.channels}."
        raise UserError(problem, "Leave out data.channels=, or prepare them again with other channels.")
    if config.labels and pyramid.labels is None:
        raise UserError(f"data.labels=true, but {name} has no labels.", "Prepare it with labels=true.")
    if verify:
        pyramid.verify(levels_up_to(resolution))
    return pyramid


def _avatars(config: DataConfig, resolution: int) -> ImagePyramid:
    cached = Path(config.cache) / f"avatars-{STYLE}-{config.count}-{resolution}px"
    if not cached.exists():
        source = AvatarSource(config.count, resolution)
        prepare(source, cached, Options(max_resolution=resolution, channels=3))
    return ImagePyramid(cached)


def _prepared(config: DataConfig, path: str, resolution: int) -> ImagePyramid:
    """The pyramid of images that are not prepared, named after what they are so that a change is noticed."""
    crop, channels, labels = config.crop, config.channels, config.labels
    options = Options(max_resolution=resolution, crop=crop, channels=channels, labels=labels)
    source = open_source(path, Path(config.cache, "downloads"))
    digest = digest_of(source.some_entries(), options)[:12]
    cached = Path(config.cache) / f"{Path(str(source.description['name'])).name}-{resolution}px-{digest}"
    if not cached.exists():
        print(f"Preparing {path}, once, into {cached}.", file=sys.stderr)
        prepare(source, cached, options)
    return ImagePyramid(cached)


@contextmanager
def _in_keys_of_training() -> Iterator[None]:
    """Errors name the keys of training where those of `pggan prepare` mean the same."""
    try:
        yield
    except UserError as error:
        texts = [error.problem, error.remedy]
        for key, own in KEYS.items():
            texts = [re.sub(rf"(?<![\w.]){key}", own, text) for text in texts]
        raise UserError(*texts) from error
