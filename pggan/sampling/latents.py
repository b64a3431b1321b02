"""Latents in files and on paths, their mean features, and directions along which images change in one respect.

A file of latents is a safetensors file with `latents` float32 [N, Z] and, in its header, where each one comes from.
N latents, Z latent size, K keyframes (latents that a path passes through) or directions, F frames.
A latent is N(0, 1), so along a unit vector the standard deviation of latents is 1.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from math import pi, sqrt
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pggan.checkpoints.generator_file import HEADER_KEY, save_tensors
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError, require
from pggan.core.rng import generator_for
from pggan.networks.networks import Generator
from pggan.sampling.generate import one_hot, seed_latents

# Paths are calculated in float64, so that ends are exact in float32.
LatentPath = Callable[[Tensor], Tensor]  # positions [F] from 0 to 1 along the path, to latents [F, Z]
Between = Callable[[Tensor, Tensor, Tensor], Tensor]  # starts and ends [F, Z] and weights [F, 1], to latents [F, Z]
Distances = Callable[[Tensor], Tensor]  # N latents [N, Z] to the distances [N - 1] from each to the next

MAX_SEEDS = 1_000_000  # 2 GiB of latents of 512 numbers
SAMPLES_PER_KEYFRAME = 64  # points from which the length of a path is measured
CENTER_SEEDS = 1024  # latents whose average features truncation pulls towards
OBSERVED = 4096  # latents whose features show the principal components
SPARE, ITERATIONS = 8, 8  # components calculated beyond those asked for, and rounds, which make these exact


def parse_seeds(seeds: int | str | Iterable[object]) -> list[int]:
    """Seeds written as 5, '0-63', '1,5,9-12' or [1, 5, 9]; raises UserError for anything else."""
    parts = str(seeds).split(",") if isinstance(seeds, str | int) else seeds
    found = [re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", str(part).strip()) for part in parts]
    ranges = [range(int(one[1]), int(one[2] or one[1]) + 1) for one in found if one]
    possible = all(found) and all(ranges) and 1 <= sum(map(len, ranges)) <= MAX_SEEDS
    require(possible, "seeds", seeds, f"as seeds=5, seeds=0-63 or seeds=[1,5,9], at most {MAX_SEEDS:,} of them")
    return [*chain(*ranges)]


def save_vectors(kind: str, vectors: Tensor, path: Path, about: dict[str, object]) -> None:
    """Write `vectors` [N, Z] as the tensor `kind` (latents or directions) of a file, with `about` in its header."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        save_tensors({kind: vectors.detach().float().cpu().contiguous()}, temporary, {HEADER_KEY: json.dumps(about)})


def load_vectors(kind: str, path: str | Path, size: int) -> Tensor:
    """The vectors [N, Z] of a file of `save_vectors`, Z = `size`; raises UserError unless all are finite and not 0.

    Directions have length 1.
    """
    problem = f"{path} has no valid {kind}"
    remedy = f"Name a .safetensors file with {kind} of {size} numbers, which are finite and not all 0."
    try:
        with safe_open(path, "pt") as file:
            vectors: Tensor = file.get_tensor(kind).float()
    except (OSError, SafetensorError) as error:
        raise UserError(f"{problem}: {error}.", remedy) from error
    if vectors.shape[1:] != (size,) or not bool(vectors.isfinite().all() & vectors.any(1).all()):
        raise UserError(f"{problem}: it has the shape {[*vectors.shape]}.", remedy)
    return F.normalize(vectors) if kind == "directions" else vectors


def slerp(start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
    """Latents on the great circles from `start` to `end` [F, Z], at `weights` [F, 1]; lengths change evenly.

    Source: Shoemake 1985.  The generator normalises its input, so only the direction matters to it.
    """
    length_start, length_end = start.norm(dim=1, keepdim=True), end.norm(dim=1, keepdim=True)
    a, b = start / length_start, end / length_end
    angle = torch.acos((a * b).sum(1, keepdim=True).clamp(-1, 1))
    direction = (torch.sin((1 - weights) * angle) * a + torch.sin(weights * angle) * b) / torch.sin(angle)
    latents = direction * torch.lerp(length_start, length_end, weights)
    # Of the same or the opposite direction, there is no unique great circle.
    return torch.where(torch.sin(angle) < 1e-6, torch.lerp(start, end, weights), latents)


def through(points: Tensor, between: Between, positions: Tensor) -> Tensor:
    """Latents [F, Z] at `positions` [F] on the open path through `points` [K, Z] in equal times, by `between`."""
    times = positions.double() * (len(points) - 1)
    leg = times.long().clamp(max=len(points) - 2)
    points = points.double()
    return between(points[leg], points[leg + 1], (times - leg)[:, None]).float()


def closed_spline(points: Tensor, positions: Tensor) -> Tensor:
    """Latents [F, Z] at `positions` [F] on the closed path through `points` [K, Z] in equal times, without corners.

    Source: Catmull and Rom 1974: the tangent at a point is half the way from the point before to the point after.
    """
    times = positions.double() * len(points)
    leg = times.long()
    before, here, after, last = (points.double()[(leg + step) % len(points)] for step in (-1, 0, 1, 2))
    w = (times - leg)[:, None]
    cubic = 3 * (here - after) + last - before
    square = 2 * before - 5 * here + 4 * after - last
    return (here + w / 2 * (after - before + w * (square + w * cubic))).float()


PATHS: dict[str, Between] = {"slerp": slerp, "lerp": torch.lerp}  # open ones, from one keyframe to the next


def path_through(keyframes: Tensor, kind: str, frames: int, distances: Distances | None = None) -> Tensor:
    """The latents [F, Z] of at least two `frames` on a path through at least two `keyframes` [K, Z].

    Args: kind: slerp (on great circles), lerp (on straight lines), or loop (back to the first, without corners);
    distances: those that are the same from frame to frame; None for equal times, and of a loop for equal angles.
    Raises UserError for a single keyframe.
    """
    if len(keyframes) < 2:
        raise UserError(f"path={kind} needs more than one image.", "Give at least two, for example seeds=1,5,9.")
    closed = kind not in PATHS
    path = partial(closed_spline, keyframes) if closed else partial(through, keyframes, PATHS[kind])
    # An open path shows both ends; a closed one leaves out the last frame, which would repeat the first.
    positions = torch.arange(frames, dtype=torch.float64) / (frames if closed else frames - 1)
    if not closed and distances is None:
        return path(positions)
    return at_constant_speed(path, distances or angles, SAMPLES_PER_KEYFRAME * len(keyframes), positions)


def random_walk(seed: int, size: int, frames: int, smoothness: float = 15.0) -> Tensor:
    """A seamless random walk: noise per frame, smoothed over time with a Gaussian that wraps around.

    Args: smoothness: standard deviation of the Gaussian, in frames, as in the official video script.
    Returns latents [F, Z] whose mean square over all frames is 1.  Another number of frames is another walk.
    """
    noise = torch.randn(frames, size, generator=generator_for(seed, "walk", frames))
    frequency = torch.fft.rfftfreq(frames)[:, None]
    transfer = torch.exp(-2 * (pi * smoothness * frequency) ** 2)  # the Gaussian's Fourier transform
    walk: Tensor = torch.fft.irfft(torch.fft.rfft(noise, dim=0) * transfer, n=frames, dim=0)
    walk /= walk.square().mean().sqrt()
    return walk


def at_constant_speed(path: LatentPath, distances: Distances, samples: int, positions: Tensor) -> Tensor:
    """The latents [F, Z] at `positions` [F] of a path: shares, from 0 to 1, of its whole length.

    Args: samples: the points that the length of the path is measured at.
    """
    measured = torch.linspace(0, 1, samples + 1, dtype=torch.float64)
    travelled = torch.cat([torch.zeros(1), distances(path(measured)).double().cumsum(0)])
    return path(torch.from_numpy(np.interp(positions * travelled[-1], travelled, measured)))


def angles(latents: Tensor) -> Tensor:
    """The angles [F - 1] in radians from each latent to the next of `latents` [F, Z]."""
    # 2 asin(|a - b| / 2) is exact for small angles, where acos is not.
    return 2 * torch.asin((F.normalize(latents.double()).diff(dim=0).norm(dim=1) / 2).clamp(max=1))


def on_sphere(latents: Tensor) -> Tensor:
    """`latents` [N, Z] with the length that a latent N(0, 1) typically has: the generator ignores any other."""
    return F.normalize(latents) * sqrt(latents.shape[1])


def move(latents: Tensor, direction: Tensor, strength: float) -> Tensor:
    """`latents` [N, Z] moved along `direction` [Z], from the length that latents typically have."""
    return on_sphere(latents) + strength * direction


@torch.no_grad()
def observed_features(network: Generator, count: int, label: Tensor | int | None) -> tuple[Tensor, Tensor]:
    """The latents [N, Z] of the seeds 0 to `count` - 1, and their 4x4 features [N, C, 4, 4] as images of a class."""
    latents = seed_latents(list(range(count)), network.architecture.latent_size)
    return latents, network.features(latents.to(network.weights[0].device), one_hot(network, label, count))


def mean_features(network: Generator, label: Tensor | int | None) -> Tensor:
    """The mean 4x4 features [1, C, 4, 4] of many latents of a class: where truncation pulls images to.

    The generator normalises its latents, so scaling those changes nothing; its first features are the place where
    typical and extreme faces differ.
    """
    return observed_features(network, CENTER_SEEDS, label)[1].mean(0, keepdim=True)


def principal_directions(network: Generator, count: int, label: Tensor | int | None = None) -> Tensor:
    """The `count` directions, at most Z, along the principal components of the 4x4 features, the strongest first.

    Source: Härkönen et al. 2020 (GANSpace), section 2.2: components of activations of an early layer, and the latents
    that lead to each one by linear regression.  `label`: the class, where there are any.
    """
    latents, features = observed_features(network, OBSERVED, label)
    count, features = min(count, latents.shape[1]), features.flatten(1).cpu()  # [N, F]
    with torch.random.fork_rng(devices=[]):  # the library draws a start at random
        torch.manual_seed(0)
        components = torch.pca_lowrank(features, min(count + SPARE, features.shape[1]), niter=ITERATIONS)[2]
    coordinates = (features - features.mean(0)) @ components[:, :count]
    directions = F.normalize(coordinates.double().T @ latents.double()).float()
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * largest.sign()  # each with its largest number above 0


def load_direction(given: str, size: int) -> Tensor:
    """The direction [Z], Z = `size`, that FILE or FILE:NUMBER names, from 0; raises UserError unless it is there."""
    path, colon, number = given.rpartition(":")
    if not (colon and number.isdecimal()):
        path, number = given, "0"
    directions = load_vectors("directions", path, size)
    if int(number) >= len(directions):
        raise UserError(f"direction={given}: the file has {len(directions)}.", f"Use 0 to {len(directions) - 1}.")
    return directions[int(number)]
