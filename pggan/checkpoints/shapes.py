"""Whether a file can hold a component of a checkpoint: its size and its tensors beside networks that take no memory."""

from collections.abc import Callable
from pathlib import Path

import torch

from pggan.checkpoints.header import require_shapes
from pggan.core.architecture import Architecture
from pggan.networks.features.discriminator import new_discriminator
from pggan.networks.networks import Discriminator, Generator, count_parameters


def meta_networks(architecture: Architecture) -> tuple[Generator, Discriminator]:
    """Networks that take no memory: their weights have shapes only."""
    with torch.device("meta"):
        return Generator(architecture), new_discriminator(architecture)


def fit_for(architecture: Architecture) -> Callable[[Path], None]:
    """A function that raises ValueError for a file that is too large, or has other tensors than its network."""
    generator, discriminator = meta_networks(architecture)
    networks = {"generator": generator, "generator_ema": generator, "discriminator": discriminator}
    most_bytes = 2**20 + 16 * (count_parameters(generator) + count_parameters(discriminator))

    def require_fit(path: Path) -> None:
        if path.stat().st_size > most_bytes:
            raise ValueError("it is larger than its networks can need")
        if path.stem in networks:
            require_shapes(path, networks[path.stem])

    return require_fit
