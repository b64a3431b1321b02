"""Files and paths of latents, directions in latent space, and the generator's mean 4x4 features for truncation.

Shapes: N latents, Z latent size, K keyframes (latents that a path passes through) or directions, F frames of a path.
"""

import json
import re
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from math import pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pggan.checkpoints.generator_file import HEADER_KEY, save_tensors
from pggan.core.atomic_io import atomic_write, parse_json
from pggan.core.errors import UserError, require
from pggan.core.rng import generator_for
from pggan.networks.networks import Generator
from pggan.sampling.generate import one_hot, seed_latents

# Paths are calculated in float64, so that a path's ends are exact in float32.
Between = Callable[[Tensor, Tensor, Tensor], Tensor]  # (starts [F, Z], ends [F, Z], weights [F, 1]) -> latents [F, Z]
Distances = Callable[[Tensor], Tensor]  # maps latents [N, Z] to the distances [N - 1] between successive latents

MAX_SEEDS = 1_000_000  # A million latents of size 512 take 2 GiB.
SMOOTHNESS = 15  # A Gaussian smooths a random walk; its standard deviation is 15 frames, or frames / 6 if smaller.
SAMPLES_PER_KEYFRAME = 64  # number of points per keyframe at which a path's length is measured
CENTER_SEEDS = 1024  # Truncation pulls 4x4 features towards the mean of 4x4 features over this many latents.
OBSERVED = 4096  # number of latents for the principal component analysis
SPARE, ITERATIONS = 8, 8  # With 8 extra components and 8 power iterations, torch.pca_lowrank is exact.


def parse_seeds(seeds: int | str | Iterable[object]) -> list[int]:
    """Read seeds such as 5, '0-63', '1,5,9-12' or [1, 5, 9]; raises UserError for anything else."""
    parts = seeds if isinstance(seeds, Iterable) and not isinstance(seeds, str) else str(seeds).split(",")
    found = [re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", str(part).strip()) for part in parts]
    ranges = [range(int(one[1]), int(one[2] or one[1]) + 1) for one in found if one]
    possible = all(found) and all(ranges) and 1 <= sum(map(len, ranges)) <= MAX_SEEDS
    require(possible, "seeds", seeds, f"like seeds=5, seeds=0-63 or seeds=[1,5,9], with at most {MAX_SEEDS:,} seeds")
    return [*chain(*ranges)]


def save_vectors(kind: str, vectors: Tensor, path: Path, about: dict[str, object]) -> None:
    """Write `vectors` [N, Z] as the tensor `kind` (latents or directions) of a file, with `about` as metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as temporary:
        save_tensors({kind: vectors.detach().float().cpu().contiguous()}, temporary, {HEADER_KEY: json.dumps(about)})


def load_vectors(kind: str, path: str | Path, size: int) -> Tensor:
    """Read latents or directions [N, `size`]; scales directions to length 1, and raises UserError for bad vectors."""
    problem = f"{path} has no valid {kind}"
    remedy = f"Give a .safetensors file with {kind} of {size} numbers. Numbers must be finite, and vectors not zero."
    try:
        with safe_open(path, "pt") as file:
            vectors: Tensor = file.get_tensor(kind).float()
    except (OSError, SafetensorError) as error:
        raise UserError(f"{problem}: {error}.", remedy) from error
    if vectors.shape[1:] != (size,) or not bool(vectors.isfinite().all() & vectors.any(1).all()):
        raise UserError(f"{problem}: the tensor has the shape {[*vectors.shape]}.", remedy)
    return F.normalize(vectors) if kind == "directions" else vectors


def slerp(start: Tensor, end: Tensor, weights: Tensor) -> Tensor:
    """Interpolate from `start` to `end` [F, Z] on great circles (Shoemake 1985), at `weights` [F, 1] from 0 to 1."""
    length_start, length_end = start.norm(dim=1, keepdim=True), end.norm(dim=1, keepdim=True)
    a, b = start / length_start, end / length_end
    angle = torch.acos((a * b).sum(1, keepdim=True).clamp(-1, 1))
    direction = (torch.sin((1 - weights) * angle) * a + torch.sin(weights * angle) * b) / torch.sin(angle)
    latents = direction * torch.lerp(length_start, length_end, weights)
    # No unique great circle joins parallel or opposite latents, so the interpolation between them is linear.
    return torch.where(torch.sin(angle) < 1e-6, torch.lerp(start, end, weights), latents)


def through(points: Tensor, between: Between, positions: Tensor) -> Tensor:
    """Join `points` [K, Z] to a path by `between`; returns this path's latents [F, Z] at `positions` [F] in [0, 1]."""
    times = positions.double() * (len(points) - 1)
    leg = times.long().clamp(max=len(points) - 2)
    points = points.double()
    return between(points[leg], points[leg + 1], (times - leg)[:, None]).float()


def closed_spline(points: Tensor, positions: Tensor) -> Tensor:
    """Return the latents [F, Z] at `positions` [F] in [0, 1] on a closed Catmull-Rom spline through `points` [K, Z]."""
    times = positions.double() * len(points)
    leg = times.long()
    before, here, after, last = (points.double()[(leg + step) % len(points)] for step in (-1, 0, 1, 2))
    w = (times - leg)[:, None]
    cubic = 3 * (here - after) + last - before
    square = 2 * before - 5 * here + 4 * after - last
    return (here + w / 2 * (after - before + w * (square + w * cubic))).float()


PATHS: dict[str, Between] = {"slerp": slerp, "lerp": torch.lerp}


def path_through(keyframes: Tensor, kind: str, frames: int, distances: Distances | None = None) -> Tensor:
    """Return F = `frames` (at least 2) latents [F, Z] on a path through `keyframes` [K, Z]; raises UserError if K is 1.

    Args: kind: slerp (great circles), lerp (straight lines) or loop (a smooth closed curve); distances: a function
    that measures distances between latents; if this function is given, successive frames are equally far apart.
    """
    if len(keyframes) < 2:
        raise UserError(f"path={kind} needs more than one seed or latent.", "Give at least two, such as seeds=1,5,9.")
    closed = kind not in PATHS
    path = partial(closed_spline, keyframes) if closed else partial(through, keyframes, PATHS[kind])
    # A closed path leaves out the last frame, which would repeat the first frame.
    positions = torch.arange(frames, dtype=torch.float64) / (frames if closed else frames - 1)
    if distances is not None:
        measured = torch.linspace(0, 1, SAMPLES_PER_KEYFRAME * len(keyframes) + 1, dtype=torch.float64)
        travelled = torch.cat([torch.zeros(1), distances(path(measured)).double().cumsum(0)])
        positions = torch.from_numpy(np.interp(positions * travelled[-1], travelled, measured))
    return path(positions)


def random_walk(seed: int, size: int, frames: int) -> Tensor:
    """Return a random walk [F, Z] that loops without a jump: noise, smoothed over frames by a periodic Gaussian."""
    noise = torch.randn(frames, size, generator=generator_for(seed, "walk", frames))
    frequency = torch.fft.rfftfreq(frames)[:, None]
    transfer = torch.exp(-2 * (pi * min(SMOOTHNESS, frames / 6) * frequency) ** 2)
    walk: Tensor = torch.fft.irfft(torch.fft.rfft(noise, dim=0) * transfer, n=frames, dim=0)
    walk /= walk.square().mean().sqrt()
    return walk


def on_sphere(latents: Tensor) -> Tensor:
    """Scale `latents` [N, Z] to length sqrt(Z); images do not change, because G normalises latents."""
    return F.normalize(latents) * sqrt(latents.shape[1])


def move(latents: Tensor, direction: Tensor, strength: float) -> Tensor:
    """Scale `latents` [N, Z] to length sqrt(Z), then add `strength` times the unit vector `direction` [Z]."""
    return on_sphere(latents) + strength * direction


@torch.no_grad()
def observed_features(network: Generator, count: int, label: Tensor | int | None) -> tuple[Tensor, Tensor]:
    """Return the latents [N, Z] of the seeds 0 to `count` - 1, and G's 4x4 features [N, C, 4, 4] for these latents."""
    latents = seed_latents(list(range(count)), network.architecture.latent_size)
    return latents, network.features(latents.to(network.weights[0].device), one_hot(network, label, count))


def mean_features(network: Generator, label: Tensor | int | None) -> Tensor:
    """Return the mean [1, C, 4, 4] of G's 4x4 features for the class `label` (None if G has no classes).

    Truncation pulls features towards this mean.  Scaling latents instead has no effect, because G normalises latents.
    """
    return observed_features(network, CENTER_SEEDS, label)[1].mean(0, keepdim=True)


def principal_directions(network: Generator, count: int, label: Tensor | int | None = None) -> Tensor:
    """Return K = `count` (at most Z) directions [K, Z] that move G's 4x4 features along their principal components.

    Source: Härkönen et al. 2020 (GANSpace), section 2.2.
    """
    latents, features = observed_features(network, OBSERVED, label)
    count, features = min(count, latents.shape[1]), features.flatten(1).cpu()  # [N, 16 C]
    with torch.random.fork_rng(devices=[]):  # pca_lowrank starts from random numbers
        torch.manual_seed(0)
        components = torch.pca_lowrank(features, min(count + SPARE, features.shape[1]), niter=ITERATIONS)[2]
    coordinates = (features - features.mean(0)) @ components[:, :count]
    directions = F.normalize(coordinates.double().T @ latents.double()).float()
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * largest.sign()  # The sign is arbitrary; make the entry with the largest magnitude positive.


def load_about(path: str | Path) -> dict[str, Any]:
    """Return the metadata that `save_vectors` wrote into a file; {} if the file has none."""
    try:
        with safe_open(path, "pt") as file:
            return parse_json((file.metadata() or {}).get(HEADER_KEY, "{}"))
    except (OSError, SafetensorError, ValueError):
        return {}


def load_direction(given: str, size: int) -> Tensor:
    """Read a direction [Z]; `given` is FILE:NUMBER, or FILE for NUMBER 1.  Raises UserError if FILE lacks NUMBER."""
    path, _, number = (given, "", "1") if Path(given).is_file() else given.rpartition(":")
    directions = load_vectors("directions", path or given, size)
    possible = number.isdecimal() and 1 <= int(number) <= len(directions)
    require(possible, "direction", given, f"FILE:NUMBER with a number from 1 to {len(directions)}")
    return directions[int(number) - 1]
