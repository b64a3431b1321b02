"""Progressive growing of GANs: train, sample and explore generators of face images up to 1024x1024."""

from pkgutil import resolve_name
from typing import Any

from pggan.core.process import __version__ as __version__
from pggan.core.process import set_library_defaults

# Public names are imported when they are first used, because importing torch takes long.
PUBLIC = {
    "load": "pggan.sampling.trained_generator:load",
    "train": "pggan.cli.main:train",
    "Loss": "pggan.losses.base:Loss",
    "from_pretrained": "pggan.interop.export:from_pretrained",
}


def __getattr__(name: str) -> Any:
    if name not in PUBLIC:
        raise AttributeError(f"module 'pggan' has no attribute '{name}'")
    return resolve_name(PUBLIC[name])


set_library_defaults()
