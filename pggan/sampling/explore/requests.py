"""The requests of the page, checked: whoever can reach the server can send anything.  N latents, Z latent size."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pggan.core.errors import UserError
from pggan.sampling.generate import RenderSettings
from pggan.sampling.output.film import ANIMATED
from pggan.sampling.trained_generator import TrainedGenerator

MAX_IMAGES = 64  # of one request; the page asks for a face, or for the neighbours around one
MAX_FRAMES = 3600  # of a film: two minutes at 30 frames per second
MAX_FPS = 120
MAX_SEED = 2**53  # up to which JavaScript knows whole numbers exactly
NUMBERS = "Send resolution, alpha, truncation, label and fps as numbers, within their bounds."


def read_settings(query: Mapping[str, str], generator: TrainedGenerator) -> RenderSettings:
    """The settings to draw with; raises UserError for what is no number, or what the generator does not have."""
    truncation = _number(query, "truncation")
    if not np.isfinite(truncation):
        raise UserError(f"truncation={truncation} is not finite.", NUMBERS)
    return generator.settings(
        resolution=_whole(query, "resolution"),
        alpha=_number(query, "alpha"),
        truncation=truncation,
        label=_whole(query, "label") if "label" in query else None,
    )


@dataclass(frozen=True)
class FilmForm:
    """The ending of a film, its frames per second, and whether it is enlarged smoothly."""

    kind: str
    fps: int
    smooth: bool


def read_film(query: Mapping[str, str]) -> FilmForm:
    """The form of a film; raises UserError for others than there are."""
    kind, fps = query.get("kind", ""), _whole(query, "fps")
    if kind not in ANIMATED or not 1 <= fps <= MAX_FPS:
        raise UserError(f"There are no films of kind '{kind}' with {fps} frames per second.", "Reload the page.")
    return FilmForm(kind, fps, query.get("smooth") == "1")


def read_seed(query: Mapping[str, str]) -> int:
    """A seed; raises UserError for anything but a whole number that the page knows exactly."""
    text = query.get("seed", "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) < MAX_SEED):
        raise UserError(f"seed={text[:20]} is not a seed.", f"Use a whole number from 0 to {MAX_SEED - 1}.")
    return int(text)


def read_latents(content: bytes, size: int, most: int) -> Tensor:
    """The latents [N, Z] in the body of a request, Z = `size`; raises UserError unless they are finite and not 0."""
    if not content or len(content) % (4 * size) or len(content) > most_bytes(size, most):
        remedy = f"Send 1 to {most} latents of {size} numbers, float32, little-endian."
        raise UserError(f"{len(content)} bytes are no latents of this generator.", remedy)
    latents = torch.from_numpy(np.frombuffer(content, "<f4").reshape(-1, size).astype(np.float32))
    if not bool(torch.isfinite(latents).all() & (latents != 0).any(1).all()):
        raise UserError("A number of a latent is not finite, or all of them are 0.", "Use another face.")
    return latents


def most_bytes(size: int, most: int) -> int:
    """The bytes of `most` latents of `size` numbers, float32."""
    return 4 * size * most


def _number(query: Mapping[str, str], key: str) -> float:
    try:
        return float(query[key])
    except (KeyError, ValueError) as error:
        raise UserError(f"{key}={query.get(key, '')[:20]} is not a number.", NUMBERS) from error


def _whole(query: Mapping[str, str], key: str) -> int:
    text = query.get(key, "")
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise UserError(f"{key}={text[:20]} is not a whole number.", NUMBERS)
    return int(text)
