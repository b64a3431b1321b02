"""From the `data` keys to an open pyramid, which is made first where that is needed."""

import re
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from pggan.config import DataConfig
from pggan.core.errors import UserError
from pggan.core.signals import interrupt_message
from pggan.data.avatars import AvatarSource
from pggan.data.build import PreparedElsewhereError
from pggan.data.index import levels_up_to
from pggan.data.planning import Options
from pggan.data.prepare import default_workers, prepare
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.source import Source
from pggan.data.sources import open_sources
from pggan.data.torchvision_sets import NamedSet

MIN_IMAGES = 2
SECONDS_BETWEEN_LOOKS = 1.0  # at images that another process prepares: that takes it seconds to hours
KEPT = "Images that are done are kept: the next start continues with the rest."
KEYS = {"max_resolution=": "schedule.final_resolution=", "channels=": "data.channels=", "labels=": "data.labels="}


def open_data(config: DataConfig, resolution: int, batch: int = 1) -> ImagePyramid:
    """The pyramid to train on up to `resolution`, with at least `batch` images.

    Images that are not prepared yet are prepared, and avatars drawn, once, into the cache.
    Raises UserError when the path is wrong, and for images that are too small, too few, or damaged since.
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
    if config.verify:
        pyramid.verify(levels_up_to(resolution))
    return pyramid


def _avatars(config: DataConfig, resolution: int) -> ImagePyramid:
    cached = Path(config.cache) / f"avatars-{config.style}-{config.count}-{resolution}px"
    if not cached.exists():
        source = AvatarSource(config.style, config.count, resolution)
        _prepare(source, cached, max_resolution=resolution, channels=3)
    return ImagePyramid(cached)


def _prepared(config: DataConfig, resolution: int) -> ImagePyramid:
    """The pyramid of images that are not prepared, named after what they are so that a change is noticed."""
    source = open_sources(config.path, NamedSet(Path(config.cache) / "downloads", "train", download=True))
    files = [(entry.name, entry.stamp) for entry in source.entries()]
    digest = sha256(repr((files, config.crop, config.channels, config.labels)).encode()).hexdigest()[:12]
    name = f"{Path(str(source.description['name'])).name}-{resolution}px"
    cached = Path(config.cache) / f"{name}-{digest}"
    if not cached.exists():
        if files:
            print(f"Preparing {config.path}, once, into {cached}.", file=sys.stderr)
        before = sorted(path for path in Path(config.cache).glob("*") if path.name.startswith(f"{name}-"))
        options = {"channels": config.channels, "crop": config.crop, "labels": config.labels}
        _prepare(source, cached, before, max_resolution=resolution, **options)
    return ImagePyramid(cached)


def _prepare(source: Source, cached: Path, reuse: Sequence[Path] = (), **options: Any) -> None:
    """Prepare `cached`, or wait for another run that does: those of a sweep on a cluster start together."""
    said = False
    while not cached.exists():
        try:
            _prepare_alone(source, cached, reuse, **options)
        except PreparedElsewhereError as error:
            if not said:
                print(f"{error.problem[:-1]}; this one waits for it.", file=sys.stderr)
            said = True
            time.sleep(SECONDS_BETWEEN_LOOKS)


def _prepare_alone(source: Source, cached: Path, reuse: Sequence[Path], **options: Any) -> None:
    try:
        with interrupt_message(lambda: KEPT):
            prepare(source, cached, Options(**options), workers=default_workers(), reuse=reuse)
    except PreparedElsewhereError:
        raise
    except UserError as error:  # it names the keys of `pggan prepare`; here those of training are meant
        texts = [error.problem, error.remedy]
        for key, own in KEYS.items():
            texts = [re.sub(rf"(?<![\w.]){key}", own, text) for text in texts]
        raise UserError(*texts) from error
