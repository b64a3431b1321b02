"""Latents in files and on paths, their mean features, and directions along which images change in one respect.

A file of latents is a safetensors file with `latents` float32 [N, Z] and, in its header, where each one comes from.
N latents, Z latent size, K keyframes (latents that a path passes through) or directions, F frames.
A latent is N(0, 1), so along a unit vector the standard deviation of latents is 1.
"""

import json
from collections.abc import Callable
from math import pi, sqrt
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from pggan.checkpoints.generator_file import HEADER_KEY, save_tensors
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError, require
from pggan.core.rng import generator_for
from pggan.networks.networks import Generator
from pggan.sampling.generate import one_hot, seed_latents

# Positions [F] from 0 to 1 along the path, to latents [F, Z]: calculated in float64, so that ends are exact in float32.
LatentPath = Callable[[Tensor], Tensor]
Between = Callable[[Tensor, Tensor, Tensor], Tensor]  # two latents [Z] and weights [F], to latents [F, Z]
Distances = Callable[[Tensor], Tensor]  # N latents [N, Z] to the distances [N - 1] from each to the next

MAX_SEEDS = 1_000_000  # 2 GiB of latents of 512 numbers
SMOOTHNESS = 15.0  # of a walk: the standard deviation of its Gaussian, in frames
SAMPLES_PER_SEGMENT = 64  # points between two keyframes from which the length of a path is measured
CENTER_SEEDS = 1024  # latents whose average features truncation pulls towards
OBSERVED = 4096  # latents whose features show the principal components
SPARE, ITERATIONS = 8, 8  # components calculated beyond those asked for, and rounds, which make these exact


def parse_seeds(seeds: object, key: str = "seeds") -> list[int]:
    """Seeds, the value of `key`, written as 5, '0-63', '1,5,9-12' or [1, 5, 9]."""
    found: list[int] = []
    for part in map(str, seeds) if isinstance(seeds, list) else str(seeds).split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UserError(f"{key}={seeds} can't be read: '{part}'.", f"Write {key}=5, {key}=0-63 or {key}=[1,5,9].")
        count = len(found) + int(last or first) - int(first) + 1
        require(count <= MAX_SEEDS, key, seeds, f"at most {MAX_SEEDS:,} seeds")
        found.extend(range(int(first), int(last or first) + 1))
    require(bool(found), key, seeds, "a list of at least one, for example [1,5,9]")
    return found


def save_vectors(kind: str, vectors: Tensor, path: Path, about: dict[str, object]) -> None:
    """Write `vectors` [N, Z] as the tensor `kind` (latents or directions) of a file, with `about` in its header."""
    with atomic_write(path) as temporary:
        save_tensors({kind: vectors.detach().float().cpu().contiguous()}, temporary, {HEADER_KEY: json.dumps(about)})


def load_vectors(kind: str, path: str | Path, size: int, key: str | None = None) -> Tensor:
    """The vectors [N, Z] of a file of `save_vectors`, Z = `size`; raises UserError unless all are finite and not 0.

    Args: key: that gave the path, where it is not called as their kind.
    """
    given, remedy = f"{key or kind}={path}", f"Name a .safetensors file with {kind} of {size} numbers."
    try:
        with safe_open(path, "pt") as file:
            vectors: Tensor = file.get_tensor(kind).float()
    except (OSError, SafetensorError) as error:
        raise UserError(f"{given} has no valid {kind}: {error}.", remedy) from error
    if vectors.ndim != 2 or vectors.shape[1] != size:
        raise UserError(f"{given} has {kind} of the shape {[*vectors.shape]}, not [N, {size}].", remedy)
    if not bool(torch.isfinite(vectors).all() & (vectors != 0).any(1).all()):
        raise UserError(f"{given} has no valid {kind}: a number is not finite, or a vector is 0.", remedy)
    return vectors


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


def through(keyframes: Tensor, between: Between) -> LatentPath:
    """An open path through at least two `keyframes` [K, Z], from each to the next by `between` in equal times."""
    points, segments = keyframes.double(), len(keyframes) - 1

    def path(positions: Tensor) -> Tensor:
        times = positions.double() * segments
        segment = times.long().clamp(max=segments - 1)
        latents = points.new_empty(len(times), points.shape[1])
        for number in range(segments):
            here = segment == number
            latents[here] = between(points[number], points[number + 1], times[here] - number)
        return latents.float()

    return path


def closed_spline(keyframes: Tensor) -> LatentPath:
    """A closed path through `keyframes` [K, Z] without corners, in equal times from each to the next.

    Directions and lengths follow a periodic Catmull-Rom spline each (tangents are half the way from the key before to
    the key after), and directions are brought back to the sphere: first derivatives are continuous everywhere.
    Source: Catmull and Rom 1974.
    """
    lengths = keyframes.double().norm(dim=1, keepdim=True)
    points = torch.cat([keyframes / lengths, lengths], 1)
    tangents = (points.roll(-1, 0) - points.roll(1, 0)) / 2

    def path(positions: Tensor) -> Tensor:
        times = positions.double() * len(keyframes)
        segment = times.long() % len(keyframes)
        following, w = (segment + 1) % len(keyframes), (times - times.long())[:, None]
        found = (
            (1 + 2 * w) * (1 - w) ** 2 * points[segment]
            + w * (1 - w) ** 2 * tangents[segment]
            + w**2 * (3 - 2 * w) * points[following]
            - w**2 * (1 - w) * tangents[following]
        )  # cubic Hermite
        directions, length = found[:, :-1], found[:, -1:]
        latents: Tensor = directions / directions.norm(dim=1, keepdim=True) * length
        return latents.float()

    return path


PATHS: dict[str, Between] = {"slerp": slerp, "lerp": lerp, "loop": slerp}  # from one keyframe to the next


def path_through(keyframes: Tensor, kind: str, frames: int, distances: Distances | None = None) -> Tensor:
    """The latents [F, Z] of `frames` steps through at least two `keyframes` [K, Z].

    Args: kind: slerp (on great circles), lerp (on straight lines), or loop (back to the first, without corners);
    distances: those that are the same from frame to frame; None for equal angles.
    Raises UserError for a single keyframe, or another kind.
    """
    closed, segments = kind == "loop", len(keyframes) - (kind != "loop")
    if kind not in PATHS or len(keyframes) < 2:
        problem = f"path={kind} does not lead through {len(keyframes)} seeds or latents."
        raise UserError(problem, f"Give at least two, for example seeds=1,5,9, and path={', '.join(PATHS)}.")
    path = closed_spline(keyframes) if closed else through(keyframes, PATHS[kind])
    positions = frame_positions(frames, closed=closed)
    if not closed and distances is None:
        return path(positions)
    return at_constant_speed(path, distances or angles, SAMPLES_PER_SEGMENT * segments, positions)


def steady_walk(seed: int, size: int, frames: int, distances: Distances | None = None) -> Tensor:
    """The latents [F, Z], Z = `size`, of a seamless random walk; `distances` as in `path_through`."""
    walk = random_walk(seed, size, frames, SMOOTHNESS)
    if distances is None:
        return walk
    path, positions = through(torch.cat([walk, walk[:1]]), lerp), frame_positions(frames, closed=True)
    return at_constant_speed(path, distances, frames, positions)


def random_walk(seed: int, size: int, frames: int, smoothness: float) -> Tensor:
    """A seamless random walk: noise per frame, smoothed over time with a Gaussian that wraps around.

    Args: smoothness: standard deviation of the Gaussian, in frames.  Returns latents [F, Z] whose mean square over all
    frames is 1.  Another number of frames is another walk.  Source: the official video script.
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
    unit = latents.double() / latents.double().norm(dim=1, keepdim=True)
    # 2 asin(|a - b| / 2) is exact for small angles, where acos is not.
    return 2 * torch.asin((unit.diff(dim=0).norm(dim=1) / 2).clamp(max=1))


def frame_positions(frames: int, *, closed: bool = False) -> Tensor:
    """The positions [F] of `frames` frames along a path, float64.

    An open path shows both ends; a closed one leaves out the last frame, which would repeat the first.
    """
    return torch.arange(frames, dtype=torch.float64) * (1 / (frames if closed else max(frames - 1, 1)))


def on_sphere(latents: Tensor) -> Tensor:
    """`latents` [N, Z] with the length that a latent N(0, 1) typically has: the generator ignores any other."""
    scaled: Tensor = latents / latents.norm(dim=1, keepdim=True) * sqrt(latents.shape[1])
    return scaled


def move(latents: Tensor, direction: Tensor, strength: float) -> Tensor:
    """`latents` [N, Z] moved along `direction` [Z], from the length that latents typically have."""
    return on_sphere(latents) + strength * direction


@torch.no_grad()
def observed_features(network: Generator, latents: Tensor, label: int | None) -> Tensor:
    """The 4x4 features [N, C, 4, 4] of `latents` [N, Z] of a class."""
    labels = None if label is None else torch.full((len(latents),), label)
    return network.features(latents.to(network.weights[0].device), one_hot(network, labels))


def mean_features(network: Generator, label: int | None) -> Tensor:
    """The mean 4x4 features [1, C, 4, 4] of many latents of a class: where truncation pulls images to.

    The generator normalises its latents, so scaling those changes nothing; its first features are the place where
    typical and extreme faces differ.
    """
    latents = seed_latents(list(range(CENTER_SEEDS)), network.architecture.latent_size)
    return observed_features(network, latents, label).mean(0, keepdim=True)


@torch.no_grad()
def principal_directions(network: Generator, count: int, label: int | None = None) -> Tensor:
    """The `count` directions that lead along the principal components of the 4x4 features, the strongest first.

    Source: Härkönen et al. 2020 (GANSpace), section 2.2: components of activations of an early layer, and the latents
    that lead to each one by linear regression.  `label`: the class, where there are any.
    """
    latents = seed_latents(list(range(OBSERVED)), network.architecture.latent_size)
    features = observed_features(network, latents, label).flatten(1).cpu()  # [N, F]
    with torch.random.fork_rng(devices=[]):  # the library draws a start at random
        torch.manual_seed(0)
        components = torch.pca_lowrank(features, min(count + SPARE, features.shape[1]), niter=ITERATIONS)[2]
    coordinates = (features - features.mean(0)) @ components[:, :count]
    directions = unit(coordinates.double().T @ latents.double())
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    return directions * largest.sign()  # each with its largest number above 0


def unit(vectors: Tensor) -> Tensor:
    """`vectors` [N, Z] with length 1, in float32."""
    scaled: Tensor = vectors / vectors.norm(dim=1, keepdim=True)
    return scaled.float()


def load_directions(path: str, size: int, key: str = "directions") -> Tensor:
    """The directions [K, Z] of a file, Z = `size`, with length 1; raises UserError unless it is a valid one."""
    return unit(load_vectors("directions", path, size, key))


def load_direction(given: str, size: int) -> Tensor:
    """The direction [Z], Z = `size`, that FILE or FILE:NUMBER names, from 0; raises UserError unless it is there."""
    path, colon, number = given.rpartition(":")
    if not (colon and number.isdecimal()):
        path, number = given, "0"
    directions = load_directions(path, size, "direction")
    if int(number) >= len(directions):
        raise UserError(f"direction={given}: the file has {len(directions)}.", f"Use 0 to {len(directions) - 1}.")
    return directions[int(number)]
