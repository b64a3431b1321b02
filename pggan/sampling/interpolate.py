"""`pggan interpolate`: what lies between latents, as a strip, a grid or a film."""

from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise

import numpy as np
import torch
from torch import Tensor

from pggan.config.commands import InterpolateConfig, InterpolationPath
from pggan.config.validation import parse_grid
from pggan.core.devices import set_threads
from pggan.core.text import next_command
from pggan.sampling.film import ANIMATED, film_zoom, require_film, save_film
from pggan.sampling.generate import RenderSettings
from pggan.sampling.images import STILLS, Pixels, check_output, enlarge, grid, output_path, save_picture, sheet_zoom
from pggan.sampling.latents import parse_seeds, path_through, steady_walk
from pggan.sampling.projection import laplacian_distance
from pggan.sampling.trained_generator import TrainedGenerator, load


def run(config: InterpolateConfig) -> int:
    """Write the frames side by side (.png), or one after the other (.webp, .gif, .mp4); returns the exit code.

    A film with a grid shows that many paths at once: path n goes through each seed + 1000 n, or begins at the n-th
    saved latent.  A picture with a grid breaks its frames into rows.  In films the image changes at constant speed.
    """
    set_threads(config.threads)
    target = output_path(config.out, config.run, "interpolation", ".png")
    animated = target.suffix.lower() in ANIMATED
    frames = config.frames
    columns, rows = parse_grid(config.grid, "grid") if config.grid else (1 if animated else frames, 1)
    generator = load(config.run, config.device, config.checkpoint)
    settings = generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=config.truncation, label=config.label
    )
    side = settings.resolution
    zoom = config.zoom or (film_zoom(columns * side, rows * side) if animated else sheet_zoom(side, columns))
    if animated:
        require_film(target, columns * side * zoom, rows * side * zoom)
    seeds = "0-4" if config.seeds is None else config.seeds
    distances = partial(visible_steps, generator, settings) if animated else None
    paths = []
    for number in range(columns * rows if animated else 1):
        if config.path is InterpolationPath.walk:
            seed = parse_seeds(seeds)[0] + 1000 * number
            paths.append(steady_walk(seed, generator.latent_size, frames, distances))
        else:
            keyframes, _ = generator.keyframes(seeds, config.latents, number)
            paths.append(path_through(keyframes, config.path.value, frames, distances))
    out = check_output(str(target), (*STILLS, *ANIMATED))
    images = generator.stream(torch.stack(paths, 1).flatten(0, 1), settings)
    if animated:
        save_film(grids(images, len(paths), columns, zoom), frames, config.fps, out)
    else:
        save_picture(grid(enlarge(np.stack(list(images)), zoom), columns), out)
    print(f"{out}: {frames} frames at {side}x{side}, {config.path.value}")
    choice = {key: value for key, value in config.generator_keys.items() if key in ("run", "checkpoint")}
    print(next_command("explore", "open=true", **choice))
    return 0


def grids(images: Iterator[Pixels], count: int, columns: int, zoom: int) -> Iterator[Pixels]:
    """Frames of `count` images each, side by side in `columns`, enlarged by `zoom`."""
    while frame := list(islice(images, count)):
        yield grid(enlarge(np.stack(frame), zoom), columns)


def visible_steps(generator: TrainedGenerator, settings: RenderSettings, latents: Tensor) -> Tensor:
    """The distances [N - 1] from the image of each of `latents` [N, Z] to the next, as people see them (Laplacian)."""
    images = (torch.from_numpy(image).permute(2, 0, 1)[None] / 127.5 for image in generator.stream(latents, settings))
    return torch.cat([laplacian_distance(before, after) for before, after in pairwise(images)])
