"""The files of the page, and what it has to know about a generator.  The same for a server and a static folder.

Z latent size, K directions, L labels.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.version import __version__
from pggan.sampling.latents.directions import directions_of_activations, unit
from pggan.sampling.latents.latents import load_vectors
from pggan.sampling.output.film import ANIMATED, VIDEO
from pggan.sampling.trained_generator import TrainedGenerator

STATIC = Path(__file__).parent / "static"
CONTENT_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
DIRECTIONS = 8  # sliders, where no file of directions is named


def page_files() -> dict[str, bytes]:
    """The content of each file of the page, by its name."""
    return {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in CONTENT_TYPES}


def describe_page(generator: TrainedGenerator, name: str, renderer: str, films: Sequence[str]) -> dict[str, Any]:
    """The content of model.json, which the page reads.

    Args: name: the title; renderer: the module that draws, server or browser; films: the endings of the films that can
    be exported, empty where the renderer finds out by itself.
    """
    return {
        "name": name,
        "version": __version__,
        "renderer": renderer,
        "latent_size": generator.latent_size,
        "resolutions": generator.resolutions,
        "channels": generator.network.architecture.channels,
        "num_classes": generator.num_classes,
        "resolution": generator.resolution,
        "alpha": generator.alpha,
        "images": generator.images,
        "films": films,
    }


def page_name(run: str) -> str:
    """The title of a page: the directory of the generator."""
    path = Path(run).absolute()
    return path.parent.name if path.suffix else path.name


def film_kinds() -> list[str]:
    """The endings of the films that this machine can write."""
    return [kind for kind in ANIMATED if kind not in VIDEO or find_spec("av") is not None]


def page_directions(generator: TrainedGenerator, given: str | None) -> Tensor:
    """The directions [K, Z] of the sliders: those of a file, else principal ones of the first features.

    Raises UserError when the file has no directions for this generator.
    """
    if given is not None:
        directions = load_vectors("directions", given, generator.latent_size, "directions")
        return unit(directions)
    labels = F.one_hot(torch.tensor([0]), generator.num_classes).float() if generator.num_classes else None
    return directions_of_activations(generator.network, min(DIRECTIONS, generator.latent_size), labels)


def to_file(vectors: Tensor) -> bytes:
    """Vectors as the page reads them: float32, little-endian, one after the other."""
    content: bytes = vectors.detach().cpu().contiguous().numpy().astype("<f4").tobytes()
    return content
