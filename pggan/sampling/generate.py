"""Latents of seeds, and a generator's images of latents: at any resolution and alpha, truncated or not.

N images, Z latent size, R resolution, C channels, L classes.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.rng import generator_for
from pggan.networks.layers import ComputeOptions, use_options
from pggan.networks.networks import Generator
from pggan.sampling.images import Pixels, to_bytes

BATCH_SIZE = 8  # of generated images: at 1024x1024, each takes hundreds of megabytes
PARALLEL_SIDE = 128  # pixels up to which CPU threads draw an image each, rather than one image together


@dataclass(frozen=True)
class RenderSettings:
    """The settings of a drawn image: resolution, alpha (0 to 1), truncation (1: none) and class."""

    resolution: int
    alpha: float
    truncation: float = 1.0
    label: int | None = None


def seed_latents(seeds: list[int], size: int) -> Tensor:
    """The latents [N, Z] of `seeds`, N(0, 1), drawn on the CPU whatever the device."""
    latents = torch.empty(len(seeds), size)
    for row, seed in enumerate(seeds):  # in place: a list of them, then stacked, would take more than twice the memory
        torch.randn(size, generator=generator_for(seed, "latent", 0), out=latents[row])
    return latents


def render_each(
    network: Generator, latents: Iterable[Tensor], settings: RenderSettings, center: Tensor | None = None
) -> Iterator[Pixels]:
    """The images uint8 [R, R, C] of `latents` [Z], in their order, as they are drawn; memory does not grow with them.

    An image is always drawn alone, because the arithmetic of a batch can depend on its size: a seed's image never
    depends on its company.  On a CPU each thread draws an image of its own, which takes a fraction of the time that
    several threads take for one small image; large ones (see PARALLEL_SIDE) are drawn by all threads together.

    Args: center: the mean features (see `mean_features`), where the images are truncated.
    """

    def draw(latent: Tensor) -> Pixels:
        labels = None if settings.label is None else torch.tensor([settings.label])
        image: Pixels = draw_batch(network, latent[None], labels, settings, center)[0]
        return image

    threads = torch.get_num_threads()
    with use_options(network, ComputeOptions()):  # weights are prepared once for all images
        if network.weights[0].device.type != "cpu" or settings.resolution > PARALLEL_SIDE:
            yield from map(draw, latents)
            return
        try:
            with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
                waiting: deque[Future[Pixels]] = deque()
                for latent in latents:
                    waiting.append(pool.submit(draw, latent))
                    if len(waiting) > 2 * threads:
                        yield waiting.popleft().result()
                while waiting:
                    yield waiting.popleft().result()
        finally:
            torch.set_num_threads(threads)  # the initializer has set it for threads still to come, too


@torch.no_grad()
def draw_batch(
    network: Generator, latents: Tensor, labels: Tensor | None, settings: RenderSettings, center: Tensor | None = None
) -> Pixels:
    """Images uint8 [N, R, R, C] of `latents` [N, Z] and `labels` [N] (where there are any), in one batch."""
    latents = latents.to(network.weights[0].device)
    features = network.features(latents, one_hot(network, labels))
    if center is not None:
        features = torch.lerp(center, features, settings.truncation)
    return to_bytes(network.grow(features, settings.resolution, settings.alpha))


def draw_in_batches(
    network: Generator, latents: Tensor, labels: Tensor | None, settings: RenderSettings, batch_size: int
) -> Pixels:
    """Images as of `draw_batch`, `batch_size` at a time; their last bits can depend on it."""
    batches = torch.split(torch.arange(len(latents)), batch_size)
    of_batch = (None if labels is None else labels[batch] for batch in batches)
    both = zip(batches, of_batch, strict=True)
    return np.concatenate([draw_batch(network, latents[batch], some, settings) for batch, some in both])


def draw_seeds(
    network: Generator, count: int, resolution: int, alpha: float, *, batch_size: int = BATCH_SIZE
) -> Pixels:
    """Images uint8 [N, R, R, C] of the seeds 0 to `count` - 1, of the classes in turn where there are any."""
    num_classes = network.architecture.num_classes
    labels = torch.arange(count) % num_classes if num_classes else None
    latents = seed_latents(list(range(count)), network.architecture.latent_size)
    return draw_in_batches(network, latents, labels, RenderSettings(resolution, alpha), batch_size)


def one_hot(network: Generator, labels: Tensor | None) -> Tensor | None:
    """The `labels` [N] as the network takes them, [N, L]; None where there are none."""
    if labels is None:
        return None
    return F.one_hot(labels, network.architecture.num_classes).float().to(network.weights[0].device)
