"""`pggan sample`: images from a generator."""

from math import ceil, sqrt
from pathlib import Path

import numpy as np

from pggan.config import SampleConfig
from pggan.config.notation import parse_grid, parse_seeds
from pggan.core.errors import UserError
from pggan.sampling.images import check_output, enlarge, grid, make_folder, save_png
from pggan.sampling.trained_generator import load


def run(config: SampleConfig) -> int:
    """Write a grid (out=….png), or one file per seed (out=DIRECTORY); returns the exit code."""
    seeds = parse_seeds(config.seeds)
    columns, rows = parse_grid(config.grid, "grid") if config.grid else (ceil(sqrt(len(seeds))), len(seeds))
    if columns * rows < len(seeds):
        raise UserError(f"grid={config.grid} has no room for {len(seeds)} seeds.", "Take a larger grid or fewer seeds.")
    generator = load(config.run, config.device)
    settings = generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=config.truncation, label=config.label
    )
    one_file = bool(Path(config.out).suffix)
    out = check_output(config.out, (".png",)) if one_file else make_folder(Path(config.out), "out")
    images = enlarge(np.stack(list(generator.stream(generator.latents(seeds), settings))), config.zoom)
    if one_file:
        save_png(grid(images, columns), out)
    else:
        for seed, image in zip(seeds, images, strict=True):
            save_png(image, out / f"seed-{seed}.png")
    print(f"{out}: {len(seeds)} images at {settings.resolution}x{settings.resolution}, alpha {settings.alpha:g}")
    return 0
