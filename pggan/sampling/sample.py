"""`pggan sample`: images of a generator, on one sheet or one file each."""

from math import ceil, sqrt

import torch

from pggan.config.commands import SampleConfig
from pggan.config.validation import parse_grid
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.sampling.directions import load_direction, move
from pggan.sampling.film import tracked
from pggan.sampling.images import (
    STILLS,
    check_output,
    enlarge,
    make_folder,
    output_path,
    save_picture,
    save_png,
    sheet,
    sheet_zoom,
)
from pggan.sampling.trained_generator import load


def run(config: SampleConfig) -> int:
    """Write a contact sheet (out=….png, .jpg or .webp), or one file per image (out=DIRECTORY); returns the exit code.

    Several strengths of a direction are the columns of a sheet.
    """
    set_threads(config.threads)
    strengths = config.strength if config.direction is not None else []
    target = output_path(config.out, config.run, "sample", ".png")
    if not target.suffix and len(strengths) > 1:
        raise UserError("A directory takes the images at one strength.", "Write a sheet: out=FILE.png.")
    generator = load(config.run, config.device, config.checkpoint)
    settings = generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=config.truncation, label=config.label
    )
    latents, names = generator.keyframes("0-63" if config.seeds is None else config.seeds, config.latents)
    if config.direction is not None:
        direction = load_direction(config.direction, generator.latent_size)
        latents = torch.stack([move(latents, direction, strength) for strength in strengths], 1).flatten(0, 1)
    count, side = len(latents), settings.resolution
    columns, rows = (len(strengths), len(names)) if len(strengths) > 1 else grid_of(config.grid, count)
    images = tracked(generator.stream(latents, settings), count)
    if target.suffix:
        out = check_output(str(target), STILLS)
        zoom = config.zoom or sheet_zoom(side, columns)
        save_picture(sheet(images, columns, rows, side * zoom), out)
    else:
        out = make_folder(target, "out")
        for name, image in zip(names, images, strict=True):
            save_png(enlarge(image[None], config.zoom or 1)[0], out / f"{name}.png")
    print(f"{out}: {count} images at {side}x{side}, alpha {settings.alpha:g}")
    print(next_command("interpolate", "path=loop", "out=loop.webp", **config.generator_keys))
    return 0


def grid_of(grid: str | None, count: int) -> tuple[int, int]:
    """Columns and rows for `count` images: as given, or a square; raises UserError where there is too little room."""
    columns, rows = parse_grid(grid, "grid") if grid else (ceil(sqrt(count)), ceil(count / ceil(sqrt(count))))
    if columns * rows < count:
        raise UserError(f"grid={grid} has no room for {count} images.", "Use a larger grid or fewer seeds.")
    return columns, rows
