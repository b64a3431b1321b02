"""Paths of latents.  Pure functions: a path depends on its latents or seed alone, and is the same everywhere.

Z latent size, K keyframes (latents that a path passes through), F frames.
"""

from collections.abc import Callable
from math import pi

import torch
from torch import Tensor

from pggan.core.rng import generator_for

# Positions [F] from 0 to 1 along the path, to latents [F, Z]: calculated in float64, so that ends are exact in float32.
LatentPath = Callable[[Tensor], Tensor]
Between = Callable[[Tensor, Tensor, Tensor], Tensor]  # two latents [Z] and weights [F], to latents [F, Z]

SAMPLES_PER_SEGMENT = 64  # points between two keyframes from which the length of a path is measured
WALKED_TOGETHER = 32  # numbers of latents that are smoothed at a time
BLOCK = 512  # points whose latents are in memory at a time: a long walk has thousands


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


def around(points: Tensor) -> LatentPath:
    """A closed path of straight lines through `points` [K, Z], in equal times from each to the next."""

    def path(positions: Tensor) -> Tensor:
        times = positions.double() * len(points)
        number = times.long() % len(points)
        share = (times - times.long())[:, None]
        return torch.lerp(points[number].double(), points[(number + 1) % len(points)].double(), share).float()

    return path


def at_constant_speed(
    path: LatentPath, distances: Callable[[Tensor], Tensor], samples: int, parts: int = 1
) -> LatentPath:
    """`path` parametrised by arc length in each of `parts` equal parts of it, so that its speed is constant there.

    Args: distances: those [N] from each latent to the next of N + 1 [N + 1, Z]; samples: a multiple of `parts`, the
    points that the length of the path is measured at.
    """
    positions = torch.linspace(0, 1, samples + 1, dtype=torch.float64)
    blocks = (positions[start : start + BLOCK + 1] for start in range(0, samples, BLOCK))
    lengths = torch.cat([distances(path(block)) for block in blocks]).double().view(parts, -1)
    lengths = torch.where(lengths.sum(1, keepdim=True) == 0, 1, lengths)  # where nothing moves, any speed is constant
    shares = lengths / lengths.sum(1, keepdim=True) / parts
    travelled = torch.cat([torch.zeros(1), shares.flatten().cumsum(0)])
    travelled[-1] = 1

    def even(wanted: Tensor) -> Tensor:
        after = torch.searchsorted(travelled, wanted.double()).clamp(1, samples)
        start, end = travelled[after - 1], travelled[after]
        share = ((wanted - start) / (end - start).clamp(min=1e-30)).clamp(0, 1)
        return path(torch.lerp(positions[after - 1], positions[after], share))

    return even


def angles(latents: Tensor) -> Tensor:
    """The angles [F - 1] in radians from each latent to the next of `latents` [F, Z]."""
    unit = latents.double() / latents.double().norm(dim=1, keepdim=True)
    # 2 asin(|a - b| / 2) is exact for small angles, where acos is not.
    return 2 * torch.asin((unit.diff(dim=0).norm(dim=1) / 2).clamp(max=1))


def loop(keyframes: Tensor, parts: int = 1) -> LatentPath:
    """A closed path through `keyframes` [K, Z] without corners; it turns by equal angles in equal times."""
    return at_constant_speed(closed_spline(keyframes), angles, SAMPLES_PER_SEGMENT * len(keyframes), parts)


def frame_positions(
    frames: int, *, closed: bool = False, segments: int = 1, hold: int = 0, ease: bool = False
) -> Tensor:
    """The positions [F] of `frames` frames along a path, float64.

    An open path shows both ends; a closed one leaves out the last frame, which would repeat the first.
    Args: segments: equal parts of the path; hold: additional frames that stand still at every border of two parts, and
    at the ends of an open path; ease: start and stop gently at these (smoothstep).
    """
    stops = segments + (0 if closed else 1)
    moving = frames - hold * stops
    times = torch.arange(moving, dtype=torch.float64) * (segments / (moving if closed else max(moving - 1, 1)))
    if hold:
        borders = torch.arange(stops, dtype=torch.float64).repeat_interleave(hold)
        times = torch.cat([times, borders]).sort().values
    if ease:
        part, w = times.floor(), times - times.floor()
        times = part + w**2 * (3 - 2 * w)
    return times / segments


def random_walk(seed: int, size: int, frames: int, smoothness: float) -> Tensor:
    """A seamless random walk: noise per frame, smoothed over time with a Gaussian that wraps around.

    Args: smoothness: standard deviation of the Gaussian, in frames.  Returns latents [F, Z] whose mean square over all
    frames is 1.  Another number of frames is another walk.  Source: the official video script.
    """
    walk = torch.randn(frames, size, generator=generator_for(seed, "walk", frames))
    frequency = torch.fft.rfftfreq(frames)[:, None]
    transfer = torch.exp(-2 * (pi * smoothness * frequency) ** 2)  # the Gaussian's Fourier transform
    for part in torch.split(walk, WALKED_TOGETHER, dim=1):  # in place: a long walk is the most that a film keeps
        part.copy_(torch.fft.irfft(torch.fft.rfft(part, dim=0) * transfer, n=frames, dim=0))
    return walk.div_(walk.square().mean().sqrt())
