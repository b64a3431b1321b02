"""A loaded generator's images: at any stage, truncated or not, independent of what else is drawn with them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pggan.checkpoints.read import LoadedGenerator, load_generator
from pggan.config import DrawConfig
from pggan.core.errors import UserError
from pggan.distributed.devices import choose_device
from pggan.sampling.images import Pixels, to_bytes
from pggan.sampling.latents import seed_latents

CENTER_SEEDS = 1024  # latents whose average features truncation pulls towards


@dataclass(frozen=True)
class Stage:
    """What to draw: resolution, alpha, truncation and class."""

    resolution: int
    alpha: float
    truncation: float
    label: int | None


def open_generator(config: DrawConfig) -> tuple[LoadedGenerator, Stage]:
    """The generator and the stage that `config` asks for."""
    generator = load_generator(config.run, choose_device(config.devices))
    stage = choose_stage(
        generator,
        resolution=config.resolution,
        alpha=config.alpha,
        truncation=config.truncation,
        label=config.label,
    )
    return generator, stage


def choose_stage(
    generator: LoadedGenerator,
    *,
    resolution: int | None,
    alpha: float | None,
    truncation: float,
    label: int | None,
) -> Stage:
    """The stage asked for, or for None the newest one trained; raises UserError for what there is not."""
    architecture = generator.network.architecture
    if resolution is not None and resolution not in architecture.resolutions:
        raise UserError(
            f"resolution={resolution}: this generator has no such level.",
            f"It has {', '.join(map(str, architecture.resolutions))}.",
        )
    if alpha is None:
        alpha = generator.alpha if resolution in (None, generator.resolution) else 1.0
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha={alpha} is not a weight.", "Take a number from 0 (old layers) to 1 (new layers).")
    if label is not None and not 0 <= label < architecture.labels:
        raise UserError(
            f"label={label}: this generator has {architecture.labels} classes.",
            "Take a number below that, or leave it out.",
        )
    if label is None and architecture.labels:
        label = 0
    return Stage(resolution or generator.resolution, alpha, truncation, label)


def render(generator: LoadedGenerator, latents: Tensor, stage: Stage) -> Pixels:
    """Images uint8 [N, R, R, C] of `latents` [N, Z].

    One at a time: the arithmetic of a batch can depend on its size, and a seed's face must not.
    """
    network = generator.network
    device = next(network.parameters()).device
    center = _center(generator, stage.label) if stage.truncation != 1 else None
    images = []
    for latent in latents:
        features = network.features(latent[None].to(device), _one_hot(generator, stage.label, 1))
        if center is not None:
            features = torch.lerp(center, features, stage.truncation)
        images.append(to_bytes(network.grow(features, stage.resolution, stage.alpha)))
    return np.concatenate(images)


def _center(generator: LoadedGenerator, label: int | None) -> Tensor:
    """The average 4x4 features [1, C, 4, 4].

    The generator normalises its latents, so scaling those changes nothing; its first features are the place where
    typical and extreme faces differ.
    """
    latents = seed_latents(list(range(CENTER_SEEDS)), generator.network.architecture.latent_size)
    device = next(generator.network.parameters()).device
    labels = _one_hot(generator, label, CENTER_SEEDS)
    return generator.network.features(latents.to(device), labels).mean(0, keepdim=True)


def _one_hot(generator: LoadedGenerator, label: int | None, count: int) -> Tensor | None:
    """`label` for each of `count` images, one-hot [N, L]; None without classes."""
    if label is None:
        return None
    labels = torch.zeros(
        count, generator.network.architecture.labels, device=next(generator.network.parameters()).device
    )
    labels[:, label] = 1
    return labels
