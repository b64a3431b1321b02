"""Draws latents from seeds, and images from latents (Z latent size, R resolution, C channels, L classes)."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.rng import generator_for
from pggan.networks.layers import ComputeOptions, use_options
from pggan.networks.networks import Generator
from pggan.sampling.images import Pixels, to_bytes

DRAWN_AHEAD = 16  # Images are drawn in chunks of this many images per CPU thread, so that threads rarely wait.
PARALLEL_SIDE = 128  # On a CPU, one thread draws an image of up to this side in pixels; larger images take all threads.


@dataclass(frozen=True)
class RenderSettings:
    """Settings for drawing images."""

    resolution: int
    alpha: float  # fade-in weight of the newest layers, from 0 to 1
    truncation: float = 1.0  # 1 means no truncation
    label: Tensor | int | None = None  # one class for all images, or classes [N]; None if G has no classes


def seed_latents(seeds: list[int], size: int) -> Tensor:
    """Draw latents [N, Z] from N(0, 1) on the CPU, so that a seed gives the same latent on all devices."""
    latents = torch.empty(len(seeds), size)
    for row, seed in enumerate(seeds):  # Filling one tensor takes less than half the memory of `torch.stack`.
        torch.randn(size, generator=generator_for(seed, "latent", 0), out=latents[row])
    return latents


def render_each(
    network: Generator, latents: Tensor, settings: RenderSettings, center: Tensor | None = None
) -> Iterator[Pixels]:
    """Yield the images uint8 [R, R, C] of `latents` [N, Z], drawn one by one, because the batch size affects rounding.

    On a CPU, images of up to PARALLEL_SIDE pixels are drawn by one thread each, which is several times faster.
    For truncation, `center` is the result of `mean_features`.  If `center` is None, there is no truncation.
    """

    def draw_one(latent: Tensor) -> Pixels:
        image: Pixels = draw(network, latent[None], settings, center=center)[0]
        return image

    threads = torch.get_num_threads()
    with use_options(network, ComputeOptions()):  # Weights are scaled (equalized learning rate) once for all images.
        if network.weights[0].device.type != "cpu" or settings.resolution > PARALLEL_SIDE:
            yield from map(draw_one, latents)
            return
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                for some in torch.split(latents, DRAWN_AHEAD * threads):
                    yield from pool.map(draw_one, some)
        finally:
            torch.set_num_threads(threads)  # Undo the pool's set_num_threads(1), which also limits later threads.


@torch.no_grad()
def draw(
    network: Generator, latents: Tensor, settings: RenderSettings, batch_size: int = 8, center: Tensor | None = None
) -> Pixels:
    """Draw images uint8 [N, R, R, C] of `latents` [N, Z], truncated towards `center` (see `mean_features`) if given."""
    device, classes, images = network.weights[0].device, one_hot(network, settings.label, len(latents)), []
    for rows in torch.split(torch.arange(len(latents)), batch_size):
        features = network.features(latents[rows].to(device), None if classes is None else classes[rows])
        if center is not None:
            features = torch.lerp(center, features, settings.truncation)
        images.append(to_bytes(network.grow(features, settings.resolution, settings.alpha)))
    return np.concatenate(images)


def draw_seeds(network: Generator, count: int, resolution: int, alpha: float) -> Pixels:
    """Draw images uint8 [N, R, R, C] of the seeds 0 to N - 1; if G has L classes, image n has class n mod L."""
    num_classes = network.architecture.num_classes
    labels = torch.arange(count) % num_classes if num_classes else None
    latents = seed_latents(list(range(count)), network.architecture.latent_size)
    return draw(network, latents, RenderSettings(resolution, alpha, label=labels))


def one_hot(network: Generator, label: Tensor | int | None, count: int) -> Tensor | None:
    """Encode `label` (one class for all images, or classes [N]) as one-hot labels [N, L]; None stays None."""
    if label is None:
        return None
    numbers = torch.as_tensor(label).expand(count)
    return F.one_hot(numbers, network.architecture.num_classes).float().to(network.weights[0].device)
