"""Latents of seeds, and files of latents.  N latents, Z latent size.

A file of latents is a safetensors file with `latents` float32 [N, Z] and, in its header, where each one comes from.
Seeds are pure functions: the same seed gives the same face everywhere.
"""

import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.core.rng import generator_for
from pggan.core.tensor_file import save_tensors

HEADER_KEY = "pggan"
MAX_NUMBERS = 2**28  # in a file: a gigabyte


def seed_latents(seeds: list[int], size: int) -> Tensor:
    """The latents [N, Z] of `seeds`, N(0, 1), drawn on the CPU whatever the device."""
    latents = torch.empty(len(seeds), size)
    for row, seed in enumerate(seeds):  # in place: a list of them, then stacked, would take more than twice the memory
        torch.randn(size, generator=generator_for(seed, "latent", 0), out=latents[row])
    return latents


def save_latents(latents: Tensor, path: Path, sources: list[str]) -> None:
    """Write `latents` [N, Z] as a file that `load_latents` reads; `sources` name where each one comes from."""
    save_vectors("latents", latents, path, {"sources": sources})


def load_latents(path: str | Path, size: int, key: str = "latents") -> Tensor:
    """The latents [N, Z] of a file, Z = `size`; raises UserError, naming `key`, unless it is a valid one."""
    return load_vectors("latents", path, size, key)


def save_vectors(kind: str, vectors: Tensor, path: Path, about: dict[str, object]) -> None:
    """Write `vectors` [N, Z] as the tensor `kind` of a safetensors file, with `about` in its header."""
    with atomic_write(path) as temporary:
        save_tensors({kind: vectors.detach().float().cpu().contiguous()}, temporary, {HEADER_KEY: json.dumps(about)})


def load_vectors(kind: str, path: str | Path, size: int, key: str) -> Tensor:
    """The vectors [N, Z] of a file of `save_vectors`, Z = `size`; raises UserError unless all are finite and not 0."""
    given = f"{key}={path}"
    if not Path(path).is_file():
        raise UserError(f"{given} is no file.", f"Name a .safetensors file with {kind}.")
    try:
        with safe_open(path, "pt") as file:
            if kind not in file.keys():  # noqa: SIM118 - not a dictionary
                raise ValueError(f"it has no tensor '{kind}'")
            shape = tuple(file.get_slice(kind).get_shape())
            if len(shape) != 2 or not 0 < shape[0] * shape[1] <= MAX_NUMBERS:
                raise ValueError(f"its {kind} have the shape {shape}")
            if shape[1] != size:
                raise UserError(
                    f"{given} has {kind} of {shape[1]} numbers; this generator takes {size}.",
                    "Use a file that was made with this generator, or one like it.",
                )
            vectors: Tensor = file.get_tensor(kind).float()
        if not bool(torch.isfinite(vectors).all() & (vectors != 0).any(1).all()):
            raise ValueError("a number in it is not finite, or a vector is 0")
    except (OSError, SafetensorError, ValueError, RuntimeError, TypeError) as error:
        raise UserError(f"{given} has no valid {kind}: {error}.", "Make it anew.") from error
    return vectors
