"""Projection: the latent whose image is nearest to a given one.  S starts, Z latent size, C channels, R resolution."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, log10, pi, sqrt

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.rng import generator_for
from pggan.data.reals import to_float
from pggan.networks.layers import ComputeOptions, use_options
from pggan.networks.networks import Generator
from pggan.sampling.generate import RenderSettings
from pggan.sampling.latents.latents import seed_latents
from pggan.sampling.output.images import Pixels, to_bytes
from pggan.sampling.perceptual import Distance, laplacian_distance

OnProgress = Callable[[int, float], None]  # called with the step and the smallest distance

BATCH_PIXELS = 2**16  # of candidates that are drawn together: at 32x32, 64 images
PROGRESS_STEPS = 20  # between two calls


@dataclass(frozen=True)
class ProjectionSettings:
    """How a latent is looked for; the keys of `pggan project`."""

    steps: int = 300
    starts: int = 4
    candidates: int = 1024
    learning_rate: float = 0.1
    noise: float = 0.3
    seed: int = 0


@dataclass(frozen=True)
class Projection:
    """The latent [Z] found, its image uint8 [R, R, C], their distance, and the peak signal-to-noise ratio in dB."""

    latent: Tensor
    image: Pixels
    distance: float
    psnr: float
    start: int  # the seed it began with


def project(
    network: Generator,
    target: Pixels,
    settings: RenderSettings,
    how: ProjectionSettings,
    *,
    distance: Distance = laplacian_distance,
    on_progress: OnProgress = lambda step, distance: None,
) -> Projection:
    """The latent whose image is nearest to `target` uint8 [R, R, C]; R is the resolution in `settings`.

    The best of many seeds are moved over the sphere of latents, all at once, by Adam.  Noise on the latents lets them
    leave poor minima at first; it is 0 in the second half.  After the StyleGAN2 projector (Karras et al. 2020,
    appendix D), which looks in another space and from one start.
    """
    device = network.weights[0].device
    goal = to_float(torch.tensor(target, device=device)[None])
    label = None
    if settings.label is not None:
        label = F.one_hot(torch.tensor([settings.label]), network.architecture.num_classes).float().to(device)

    def draw(latents: Tensor) -> Tensor:
        labels = None if label is None else label.expand(len(latents), -1)
        return network(latents, labels, settings.resolution, settings.alpha)  # type: ignore[no-any-return]

    def measure(latents: Tensor) -> Tensor:
        return distance(draw(latents), goal.expand(len(latents), *goal.shape[1:]))

    with use_options(network, ComputeOptions()):  # weights are prepared once for all steps
        seeds, latents = nearest_seeds(measure, network.architecture.latent_size, settings.resolution, how, device)
        latents = optimise(measure, latents, how, on_progress)
        with torch.no_grad():
            distances = measure(latents)
            best = int(distances.argmin())
            image: Pixels = to_bytes(draw(latents[best : best + 1]))[0]
    return Projection(latents[best].cpu(), image, float(distances[best]), psnr(image, target), seeds[best])


@torch.no_grad()
def nearest_seeds(
    measure: Callable[[Tensor], Tensor], size: int, resolution: int, how: ProjectionSettings, device: torch.device
) -> tuple[list[int], Tensor]:
    """The seeds whose images are nearest to the target, and their latents [S, Z], scaled to the same length."""
    seeds = list(range(how.seed, how.seed + how.candidates))
    latents = on_sphere(seed_latents(seeds, size).to(device))
    batches = torch.split(latents, max(BATCH_PIXELS // resolution**2, 1))
    best = torch.cat([measure(batch) for batch in batches]).topk(how.starts, largest=False).indices
    return [seeds[number] for number in best.tolist()], latents[best]


def optimise(
    measure: Callable[[Tensor], Tensor], latents: Tensor, how: ProjectionSettings, on_progress: OnProgress
) -> Tensor:
    """`latents` [S, Z] moved to smaller distances, each by itself."""
    latents = latents.clone().requires_grad_()
    optimizer = torch.optim.Adam([latents], betas=(0.9, 0.99))
    random = generator_for(how.seed, "projection", 0)
    for step in range(how.steps):
        done = step / how.steps
        optimizer.param_groups[0]["lr"] = how.learning_rate * (1 + cos(pi * done)) / 2
        deviation = how.noise * max(1 - 2 * done, 0) ** 2
        noise = torch.randn(latents.shape, generator=random).to(latents.device)
        distances = measure(latents + deviation * noise)
        optimizer.zero_grad()
        distances.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        with torch.no_grad():
            latents.copy_(on_sphere(latents))
        if step % PROGRESS_STEPS == 0:
            on_progress(step, float(distances.detach().min()))
    return latents.detach()


def on_sphere(latents: Tensor) -> Tensor:
    """`latents` [N, Z] with the length that a latent N(0, 1) typically has: the generator ignores any other."""
    scaled: Tensor = latents / latents.norm(dim=1, keepdim=True) * sqrt(latents.shape[1])
    return scaled


def psnr(a: Pixels, b: Pixels) -> float:
    """The peak signal-to-noise ratio in dB of two pictures uint8; infinite for equal ones."""
    error = float(np.square(a.astype(np.float64) - b).mean())
    return float("inf") if error == 0 else 10 * log10(255**2 / error)
