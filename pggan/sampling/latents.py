"""Latents of seeds, and paths between them.  Pure functions: the same seed gives the same face everywhere.

Z latent size, F frames.
"""

from collections.abc import Callable
from math import pi

import torch
from torch import Tensor

from pggan.core.rng import generator_for


def seed_latents(seeds: list[int], size: int) -> Tensor:
    """The latents [N, Z] of `seeds`, N(0, 1), drawn on the CPU whatever the device."""
    return torch.stack([torch.randn(size, generator=generator_for(seed, "latent", 0)) for seed in seeds])


def lerp(start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
    """Latents [F, Z] on the straight line between two latents [Z], at `weights` [F]."""
    return torch.lerp(start, end, weights[:, None])


def slerp(start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
    """Latents [F, Z] on the great circle between two latents [Z], at `weights` [F]; lengths change evenly.

    Source: Shoemake 1985.  The generator normalises its input, so only the direction matters to it.
    """
    length_start, length_end = start.norm(), end.norm()
    a, b = start / length_start, end / length_end
    angle = torch.acos((a @ b).clamp(-1, 1))
    if torch.sin(angle) < 1e-6:  # same or opposite direction: no unique great circle
        return lerp(start, end, weights)
    w = weights[:, None]
    direction = (torch.sin((1 - w) * angle) * a + torch.sin(w * angle) * b) / torch.sin(angle)
    latents: Tensor = direction * torch.lerp(length_start, length_end, w)
    return latents


def interpolate_path(
    keys: Tensor, frames: int, between: Callable[[Tensor, Tensor, Tensor], Tensor], closed: bool
) -> Tensor:
    """Latents [F, Z] that pass through `keys` [K, Z] in order, joined by `between`; back to the first if `closed`.

    Open paths show both ends; a closed one leaves out the last frame, which would repeat the first.
    """
    legs = len(keys) if closed else len(keys) - 1
    positions = torch.arange(frames) * (legs / (frames if closed else max(frames - 1, 1)))
    found = []
    for position in positions:
        leg = min(int(position), legs - 1)
        found.append(between(keys[leg], keys[(leg + 1) % len(keys)], (position - leg).reshape(1))[0])
    return torch.stack(found)


def random_walk(seed: int, size: int, frames: int, smoothness: float) -> Tensor:
    """A seamless random walk: noise per frame, smoothed over time with a Gaussian that wraps around.

    Args: smoothness: standard deviation of the Gaussian, in frames.  Returns latents [F, Z] whose mean square over all
    frames is 1.  Another number of frames is another walk.  Source: the official video script.
    """
    noise = torch.randn(frames, size, generator=generator_for(seed, "walk", frames))
    frequency = torch.fft.rfftfreq(frames)[:, None]
    transfer = torch.exp(-2 * (pi * smoothness * frequency) ** 2)  # the Gaussian's Fourier transform
    smooth: Tensor = torch.fft.irfft(torch.fft.rfft(noise, dim=0) * transfer, n=frames, dim=0)
    return smooth / smooth.square().mean().sqrt()
