"""`pggan interpolate`: what lies between latents, as a strip, a grid or an animation."""

from pathlib import Path

import numpy as np
from torch import Tensor

from pggan.config import InterpolateConfig, InterpolationPath
from pggan.config.notation import parse_grid, parse_seeds
from pggan.core.errors import UserError
from pggan.sampling.images import ANIMATED, check_output, enlarge, grid, save_frames, save_png
from pggan.sampling.latents import seed_latents
from pggan.sampling.paths import frame_positions, lerp, loop, random_walk, slerp, through
from pggan.sampling.trained_generator import load


def run(config: InterpolateConfig) -> int:
    """Write the frames side by side (.png), or one after the other (.webp, .gif); returns the exit code.

    An animation with a grid shows that many paths at once, each through its own seeds; a picture with a grid breaks
    its frames into rows.
    """
    seeds = parse_seeds(config.seeds)
    animated = Path(config.out).suffix.lower() in ANIMATED
    columns, rows = parse_grid(config.grid, "grid") if config.grid else (1 if animated else config.frames, 1)
    generator = load(config.run, config.device)
    settings = generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=config.truncation, label=config.label
    )
    out = check_output(config.out, (".png", *ANIMATED))
    size = generator.latent_size
    paths = [latents_of_path(config, seeds, number, size) for number in range(columns * rows if animated else 1)]
    drawn = [enlarge(np.stack(list(generator.stream(latents, settings))), config.zoom) for latents in paths]
    if animated:
        save_frames([grid(frames, columns) for frames in np.stack(drawn, axis=1)], out, config.fps)
    else:
        save_png(grid(drawn[0], columns), out)
    print(f"{out}: {config.frames} frames at {settings.resolution}x{settings.resolution}, {config.path.value}")
    return 0


def latents_of_path(config: InterpolateConfig, seeds: list[int], number: int, size: int) -> Tensor:
    """The latents [frames, Z] of path `number`: path 0 goes through `seeds`, path n through each seed + 1000 n."""
    shifted = [seed + 1000 * number for seed in seeds]
    if config.path is InterpolationPath.walk:
        return random_walk(shifted[0], size, config.frames, config.smoothness)
    if len(seeds) < 2:
        problem = f"path={config.path.value} needs at least two seeds, and there is one."
        raise UserError(problem, "Give several, for example seeds=[1,5,9]; path=walk needs only one.")
    keys = seed_latents(shifted, size)
    if config.path is InterpolationPath.loop:
        return loop(keys)(frame_positions(config.frames, closed=True))
    between = lerp if config.path is InterpolationPath.lerp else slerp
    return through(keys, between)(frame_positions(config.frames))
