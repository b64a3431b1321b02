"""From the `data` keys to an open pyramid, making it first where that is needed."""

from hashlib import sha256
from pathlib import Path

from pggan.config import DataConfig
from pggan.data.avatars import render_avatars
from pggan.data.prepare import default_workers, find_images, prepare
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.errors import UserError


def open_data(config: DataConfig, resolution: int) -> ImagePyramid:
    """The pyramid to train on up to `resolution`; a folder is prepared and avatars are rendered, once, into the cache.

    Raises UserError when the path is wrong, or its images are smaller than `resolution`.
    """
    if config.path is None:
        pyramid = _avatars(config, resolution)
    elif (Path(config.path) / INDEX_FILE).is_file():
        pyramid = ImagePyramid(Path(config.path))
    else:
        pyramid = _prepared(config, resolution)
    if pyramid.resolution < resolution:
        raise UserError(
            f"{pyramid.path} goes up to {pyramid.resolution}x{pyramid.resolution}; "
            f"schedule.final_resolution={resolution} is above that.",
            f"Lower schedule.final_resolution to {pyramid.resolution}, or prepare larger images.",
        )
    if config.labels and pyramid.labels is None:
        raise UserError(f"data.labels=true, but {pyramid.path} has no labels.", "Prepare it with labels=true.")
    return pyramid


def _avatars(config: DataConfig, resolution: int) -> ImagePyramid:
    cached = Path(config.cache) / f"avatars-{config.style}-{config.count}-{resolution}px"
    if not cached.exists():
        render_avatars(cached, style=config.style, count=config.count, resolution=resolution, workers=default_workers())
    return ImagePyramid(cached)


def _prepared(config: DataConfig, resolution: int) -> ImagePyramid:
    """A plain folder's pyramid, named after what is in the folder so that a change is noticed."""
    source = Path(config.path or "")
    files = [(str(file), file.stat().st_size, file.stat().st_mtime_ns) for file in find_images(source)]
    made_from = (files, config.crop, config.channels, config.labels)
    digest = sha256(repr(made_from).encode()).hexdigest()[:12]
    cached = Path(config.cache) / f"{source.resolve().name}-{resolution}px-{digest}"
    if not cached.exists():
        prepare(
            source,
            cached,
            max_resolution=resolution,
            channels=config.channels,
            crop=config.crop.value,
            labels=config.labels,
            workers=default_workers(),
        )
    return ImagePyramid(cached)
