"""A generator's images: at any resolution and alpha, truncated or not, with or without classes."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pggan.checkpoints.generator_file import LoadedGenerator, load_generator
from pggan.config import SampleConfig
from pggan.core.devices import choose_device
from pggan.core.errors import UserError
from pggan.networks.networks import Generator
from pggan.sampling.images import Pixels, to_bytes
from pggan.sampling.latents import seed_latents

CENTER_SEEDS = 1024  # latents whose average features truncation pulls towards


@dataclass(frozen=True)
class RenderSettings:
    """What to draw: resolution, alpha, truncation and class."""

    resolution: int
    alpha: float
    truncation: float
    label: int | None


def open_generator(config: SampleConfig) -> tuple[LoadedGenerator, RenderSettings]:
    """The generator and the settings that `config` asks for."""
    generator = load_generator(config.run, choose_device(config.device, "device"))
    return generator, render_settings(
        generator, resolution=config.resolution, alpha=config.alpha, truncation=config.truncation, label=config.label
    )


def render_settings(
    generator: LoadedGenerator,
    *,
    resolution: int | None = None,
    alpha: float | None = None,
    truncation: float = 1.0,
    label: int | None = None,
) -> RenderSettings:
    """The settings asked for, or for None those of the newest level trained; raises UserError for impossible ones."""
    architecture = generator.network.architecture
    if resolution is not None and resolution not in architecture.resolutions:
        levels = ", ".join(map(str, architecture.resolutions))
        raise UserError(f"This generator has no level for resolution={resolution}.", f"Choose one of {levels}.")
    if alpha is None:
        alpha = generator.alpha if resolution in (None, generator.resolution) else 1.0
    if not 0 <= alpha <= 1:
        raise UserError(f"alpha={alpha} is not a weight.", "Take a number from 0 (old layers) to 1 (new layers).")
    if label is not None and not 0 <= label < architecture.labels:
        remedy = f"It has {architecture.labels} classes: take a number below that, or leave out label=."
        raise UserError(f"This generator has no class for label={label}.", remedy)
    if label is None and architecture.labels:
        label = 0
    return RenderSettings(resolution or generator.resolution, alpha, truncation, label)


def render(generator: LoadedGenerator, latents: Tensor, settings: RenderSettings) -> Pixels:
    """Images uint8 [N, R, R, C] of `latents` [N, Z]."""
    classes = None if settings.label is None else torch.full((len(latents),), settings.label)
    network, resolution, alpha = generator.network, settings.resolution, settings.alpha
    # One at a time: the arithmetic of a batch can depend on its size, and a seed's face must not.
    return generate(network, latents, classes, resolution, alpha, batch_size=1, truncation=settings.truncation)


@torch.no_grad()
def generate(
    network: Generator,
    latents: Tensor,
    classes: Tensor | None,
    resolution: int,
    alpha: float,
    *,
    batch_size: int,
    truncation: float = 1.0,
) -> Pixels:
    """Images uint8 [N, R, R, C] of `latents` [N, Z] and `classes` [N], in batches; of one class if truncated."""
    device, labels = network.weights[0].device, None
    if classes is not None:
        labels = torch.nn.functional.one_hot(classes, network.architecture.labels).float().to(device)  # [N, L]
    center = None if truncation == 1 else _center(network, None if labels is None else labels[:1])
    images = []
    for part in torch.split(torch.arange(len(latents)), batch_size):
        features = network.features(latents[part].to(device), None if labels is None else labels[part])
        if center is not None:
            features = torch.lerp(center, features, truncation)
        images.append(to_bytes(network.grow(features, resolution, alpha)))
    return np.concatenate(images)


def _center(network: Generator, label: Tensor | None) -> Tensor:
    """The average 4x4 features [1, C, 4, 4] of the class one-hot `label` [1, L].

    The generator normalises its latents, so scaling those changes nothing; its first features are the place where
    typical and extreme faces differ.
    """
    latents = seed_latents(list(range(CENTER_SEEDS)), network.architecture.latent_size)
    labels = None if label is None else label.expand(CENTER_SEEDS, -1)
    return network.features(latents.to(network.weights[0].device), labels).mean(0, keepdim=True)
