"""`pggan interpolate`: what lies between latents, as a strip, a grid or a film."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from math import log2
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pggan.config import Enlargement, InterpolateConfig, InterpolationPath
from pggan.config.parse import generator_keys, listed, parse_grid, parse_seeds
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.sampling.generate import RenderSettings
from pggan.sampling.latents.latents import load_latents, seed_latents
from pggan.sampling.latents.paths import (
    SAMPLES_PER_SEGMENT,
    around,
    at_constant_speed,
    closed_spline,
    frame_positions,
    lerp,
    loop,
    random_walk,
    slerp,
    through,
)
from pggan.sampling.output import sheet
from pggan.sampling.output.film import ANIMATED, Film, automatic_zoom, require_encoder, require_size
from pggan.sampling.output.film_file import save_film
from pggan.sampling.output.images import (
    STILLS,
    Pixels,
    check_output,
    enlarge,
    enlarge_smoothly,
    grid,
    save_picture,
    shrink,
)
from pggan.sampling.output.output_path import next_output
from pggan.sampling.perceptual import laplacian_distance
from pggan.sampling.trained_generator import TrainedGenerator, load

SEEDS = "0-4"  # where neither seeds nor latents are named
BLOCK = 64  # frames whose latents are calculated together

# Numbers [N] of frames to their latents [N, Z].
Latents = Callable[[Tensor], Tensor]


def run(config: InterpolateConfig) -> int:
    """Write the frames side by side (.png), or one after the other (.webp, .gif, .apng, .mp4, .webm).

    A film with a grid shows that many paths at once, each through its own latents; a picture with a grid breaks its
    frames into rows.  Returns the exit code.
    """
    set_threads(config.threads)
    target = Path(config.out) if config.out is not None else next_output(config.run, "interpolation", ".png")
    require_encoder(target)
    animated = target.suffix.lower() in ANIMATED
    if config.constant_speed is None:
        config = replace(config, constant_speed=animated)
    columns, rows = parse_grid(config.grid, "grid") if config.grid else (1 if animated else config.frames, 1)
    generator = load(config.run, config.device, config.checkpoint)
    settings = generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=config.truncation, label=config.label
    )
    side, first = settings.resolution, config.grow_from or settings.resolution
    generator.settings(resolution=first)  # refuses those that it does not have
    if first > side:
        raise UserError(f"grow_from={first} is more than the {side} to grow to.", "Use a lower resolution.")
    if animated:
        zoom = config.zoom or automatic_zoom(columns * side, rows * side)
        require_size(target, columns * side * zoom, rows * side * zoom)
    else:
        zoom = config.zoom or sheet.automatic_zoom(side, columns)
    paths = [latents_of_path(config, index, generator, settings) for index in range(columns * rows if animated else 1)]
    out = check_output(str(target), (*STILLS, *ANIMATED))
    scale = enlarge_smoothly if config.scaling is Enlargement.smooth else enlarge

    def draw(indices: Sequence[int]) -> Iterator[Pixels]:
        images = draw_growing(generator, settings, indices, paths, first=first, frames=config.frames)
        while frame := list(islice(images, len(paths))):
            yield grid(scale(np.stack(frame), zoom), columns if animated else 1)

    if animated:
        save_film(Film(config.frames, config.fps, draw), out)
    else:
        save_picture(grid(np.stack(list(draw(range(config.frames)))), columns), out)
    print(f"{out}: {config.frames} frames at {settings.resolution}x{settings.resolution}, {config.path.value}")
    choice = {key: value for key, value in generator_keys(config).items() if key in ("run", "checkpoint")}
    print(next_command("explore", "open=true", **choice))
    return 0


def latents_of_path(
    config: InterpolateConfig, index: int, generator: TrainedGenerator, settings: RenderSettings
) -> Latents:
    """The latents of path `index`; raises UserError where it can't be drawn.

    Path 0 goes through all seeds, path n through each seed + 1000 n; of saved latents, path n begins at the n-th.
    """

    def distances(latents: Tensor) -> Tensor:
        return perceptual_steps(generator.stream(latents, settings))

    if config.path is InterpolationPath.walk:
        seed = parse_seeds(SEEDS if config.seeds is None else config.seeds)[0] + 1000 * index
        walk = random_walk(seed, generator.latent_size, config.frames, config.smoothness)
        if not config.constant_speed:
            return lambda indices: walk[indices]
        steady = at_constant_speed(around(walk), distances, config.frames)
        times = frame_positions(config.frames, closed=True)
        return lambda indices: steady(times[indices])
    keyframes = keyframes_of_path(config, index, generator.latent_size)
    if len(keyframes) < 2:
        problem = f"path={config.path.value} needs at least two seeds or latents, and there is one."
        raise UserError(problem, "Give several, for example seeds=1,5,9; path=walk needs only one seed.")
    closed = config.path is InterpolationPath.loop
    segments = len(keyframes) - (not closed)
    stops = segments + (not closed)
    if config.frames <= config.hold * stops:
        problem = f"hold={config.hold} at {stops} images leaves none of frames={config.frames} to move."
        raise UserError(problem, f"Use more than {config.hold * stops} frames.")
    parts = segments if config.hold or config.ease else 1  # what is passed through at a speed of its own
    between = lerp if config.path is InterpolationPath.lerp else slerp
    path = closed_spline(keyframes) if closed else through(keyframes, between)
    if config.constant_speed:
        path = at_constant_speed(path, distances, SAMPLES_PER_SEGMENT * segments, parts)
    elif closed:
        path = loop(keyframes, parts)
    positions = frame_positions(config.frames, closed=closed, segments=parts, hold=config.hold, ease=config.ease)
    return lambda indices: path(positions[indices])


def keyframes_of_path(config: InterpolateConfig, index: int, size: int) -> Tensor:
    """The latents [K, Z] that path `index` passes through."""
    if config.latents is None:
        seeds = parse_seeds(SEEDS if config.seeds is None else config.seeds)
        return seed_latents([seed + 1000 * index for seed in seeds], size)
    return torch.cat([load_latents(path, size) for path in listed(config.latents)]).roll(-index, 0)


def perceptual_steps(images: Iterator[Pixels]) -> Tensor:
    """The distances [N - 1] from each of N images uint8 [R, R, C] to the next, as people see them (Laplacian)."""
    steps, before = [], None
    for image in images:
        now = torch.from_numpy(image).permute(2, 0, 1)[None] / 127.5
        if before is not None:
            steps.append(laplacian_distance(before, now))
        before = now
    return torch.cat(steps)


def draw_growing(
    generator: TrainedGenerator,
    settings: RenderSettings,
    indices: Sequence[int],
    paths: list[Latents],
    *,
    first: int,
    frames: int,
) -> Iterator[Pixels]:
    """The images of frames `indices` of `frames`, those of all paths for each, at one size.

    What they show rises evenly from `first` pixels in the first frame to the resolution of `settings` in the last one:
    each image, averaged to a lower resolution, fades into itself at twice that.  The generator's own lower levels would
    show other colours: nothing has trained them since the growth had passed them.
    """

    def latents() -> Iterator[Tensor]:
        for block in torch.split(torch.tensor(indices), BLOCK):
            yield from torch.stack([path(block) for path in paths], 1).flatten(0, 1)

    levels, last = log2(settings.resolution / first), max(frames - 1, 1)
    grown = (index * levels / last for index in indices for _ in paths)
    for level, image in zip(grown, generator.stream(latents(), settings), strict=True):
        low, high = (averaged(image, settings.resolution // first >> int(level) + above) for above in (0, 1))
        weight = level - int(level)
        yield np.rint((1 - weight) * low + weight * high).astype(np.uint8)


def averaged(image: Pixels, factor: int) -> Pixels:
    """An image with the mean of each `factor` x `factor` pixels in their place."""
    return image if factor <= 1 else enlarge(shrink(image[None], factor), factor)[0]
