"""Latents of seeds.  Pure functions: the same seed gives the same face everywhere."""

import torch
from torch import Tensor

from pggan.core.rng import generator_for


def seed_latents(seeds: list[int], size: int) -> Tensor:
    """The latents [N, Z] of `seeds`, N(0, 1), drawn on the CPU whatever the device."""
    return torch.stack([torch.randn(size, generator=generator_for(seed, "latent", 0)) for seed in seeds])
