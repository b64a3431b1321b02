"""Latents of seeds, and a generator's images of latents: at any resolution and alpha, truncated or not.

N images, Z latent size, R resolution, C channels, L classes.
"""

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

DRAWN_AHEAD = 16  # images per CPU thread, before the first of them is waited for
PARALLEL_SIDE = 128  # pixels up to which CPU threads draw an image each, rather than one image together


@dataclass(frozen=True)
class RenderSettings:
    """The settings of drawn images: resolution, alpha (0 to 1), truncation (1: none), and class, or one each [N]."""

    resolution: int
    alpha: float
    truncation: float = 1.0
    label: Tensor | int | None = None


def seed_latents(seeds: list[int], size: int) -> Tensor:
    """The latents [N, Z] of `seeds`, N(0, 1), drawn on the CPU whatever the device."""
    latents = torch.empty(len(seeds), size)
    for row, seed in enumerate(seeds):  # in place: a list of them, then stacked, would take more than twice the memory
        torch.randn(size, generator=generator_for(seed, "latent", 0), out=latents[row])
    return latents


def render_each(
    network: Generator, latents: Tensor, settings: RenderSettings, center: Tensor | None = None
) -> Iterator[Pixels]:
    """The images uint8 [R, R, C] of `latents` [N, Z], in their order, as they are drawn; memory does not grow with N.

    An image is always drawn alone, because the arithmetic of a batch can depend on its size: a seed's image never
    depends on its company.  On a CPU each thread draws an image of its own, which takes a fraction of the time that
    several threads take for one small image; large ones (see PARALLEL_SIDE) are drawn by all threads together.

    Args: center: the mean features (see `mean_features`), where the images are truncated.
    """

    def draw_one(latent: Tensor) -> Pixels:
        image: Pixels = draw(network, latent[None], settings, center=center)[0]
        return image

    threads = torch.get_num_threads()
    with use_options(network, ComputeOptions()):  # weights are prepared once for all images
        if network.weights[0].device.type != "cpu" or settings.resolution > PARALLEL_SIDE:
            yield from map(draw_one, latents)
            return
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                for some in torch.split(latents, DRAWN_AHEAD * threads):
                    yield from pool.map(draw_one, some)
        finally:
            torch.set_num_threads(threads)  # the initializer has set it for threads still to come, too


@torch.no_grad()
def draw(
    network: Generator, latents: Tensor, settings: RenderSettings, batch_size: int = 8, center: Tensor | None = None
) -> Pixels:
    """Images uint8 [N, R, R, C] of `latents` [N, Z], `batch_size` at a time; their last bits can depend on it.

    Args: center: as of `render_each`.
    """
    device, classes, images = network.weights[0].device, one_hot(network, settings.label, len(latents)), []
    for rows in torch.split(torch.arange(len(latents)), batch_size):
        features = network.features(latents[rows].to(device), None if classes is None else classes[rows])
        if center is not None:
            features = torch.lerp(center, features, settings.truncation)
        images.append(to_bytes(network.grow(features, settings.resolution, settings.alpha)))
    return np.concatenate(images)


def draw_seeds(network: Generator, count: int, resolution: int, alpha: float) -> Pixels:
    """Images uint8 [N, R, R, C] of the seeds 0 to `count` - 1, of the classes in turn where there are any."""
    num_classes = network.architecture.num_classes
    labels = torch.arange(count) % num_classes if num_classes else None
    latents = seed_latents(list(range(count)), network.architecture.latent_size)
    return draw(network, latents, RenderSettings(resolution, alpha, label=labels))


def one_hot(network: Generator, label: Tensor | int | None, count: int) -> Tensor | None:
    """The class of `count` images, or one each [N], as the network takes it, [N, L]; None where there are none."""
    if label is None:
        return None
    numbers = torch.as_tensor(label).expand(count)
    return F.one_hot(numbers, network.architecture.num_classes).float().to(network.weights[0].device)
