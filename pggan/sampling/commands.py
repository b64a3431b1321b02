"""`pggan sample`, `interpolate`, `project` and `directions`: one function each, which returns the exit code."""

from collections.abc import Iterator
from functools import partial
from itertools import islice, pairwise
from math import ceil, sqrt
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pggan.config.commands import (
    DirectionsConfig,
    DrawConfig,
    InterpolateConfig,
    InterpolationPath,
    ProjectConfig,
    SampleConfig,
)
from pggan.config.train import parse_grid
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.sampling.files import (
    ANIMATED,
    STILLS,
    check_output,
    film_zoom,
    make_folder,
    output_path,
    save_film,
    save_picture,
    sheet,
    sheet_zoom,
    tracked,
)
from pggan.sampling.generate import RenderSettings
from pggan.sampling.images import Pixels, enlarge, grid
from pggan.sampling.latents import (
    load_direction,
    move,
    parse_seeds,
    path_through,
    principal_directions,
    save_vectors,
    steady_walk,
)
from pggan.sampling.projection import laplacian_distance, project, read_target
from pggan.sampling.trained_generator import TrainedGenerator, load

PAIRS = 4  # of an image and its reconstruction, side by side on a sheet
STRENGTHS = 7  # of a direction, from one border of a sheet to the other


def opened(config: DrawConfig, truncation: float = 1.0) -> tuple[TrainedGenerator, RenderSettings]:
    """The generator that the keys of a command name, and how they want its images."""
    set_threads(config.threads)
    generator = load(config.run, config.device, config.checkpoint)
    return generator, generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=truncation, label=config.label
    )


def sample(config: SampleConfig) -> int:
    """Write images on a sheet (out=….png, .jpg or .webp), or on one file each (out=DIRECTORY).

    Several strengths of a direction are the columns of a sheet.
    """
    strengths = config.strength if config.direction is not None else []
    target = output_path(config.out, config.run, "sample", ".png")
    if not target.suffix and len(strengths) > 1:
        raise UserError("A directory takes the images at one strength.", "Write a sheet: out=FILE.png.")
    generator, settings = opened(config, config.truncation)
    latents, names = generator.keyframes("0-63" if config.seeds is None else config.seeds, config.latents)
    if config.direction is not None:
        direction = load_direction(config.direction, generator.latent_size)
        latents = torch.stack([move(latents, direction, strength) for strength in strengths], 1).flatten(0, 1)
    count, side = len(latents), settings.resolution
    columns, rows = (len(strengths), len(names)) if len(strengths) > 1 else grid_of(config.grid, count)
    images = tracked(generator.stream(latents, settings), count)
    if target.suffix:
        out = check_output(str(target), STILLS)
        save_picture(sheet(images, columns, rows, side * (config.zoom or sheet_zoom(side, columns))), out)
    else:
        out = make_folder(target, "out")
        for name, image in zip(names, images, strict=True):
            save_picture(enlarge(image[None], config.zoom or 1)[0], out / f"{name}.png")
    print(f"{out}: {count} images at {side}x{side}, alpha {settings.alpha:g}")
    print(next_command("interpolate", "path=loop", "out=loop.webp", **config.generator_keys))
    return 0


def grid_of(given: str | None, count: int) -> tuple[int, int]:
    """Columns and rows for `count` images: as given, or a square; raises UserError where there is too little room."""
    columns, rows = parse_grid(given, "grid") if given else (ceil(sqrt(count)), ceil(count / ceil(sqrt(count))))
    if columns * rows < count:
        raise UserError(f"grid={given} has no room for {count} images.", "Use a larger grid or fewer seeds.")
    return columns, rows


def interpolate(config: InterpolateConfig) -> int:
    """Write the images between latents side by side (.png), or one after the other (.webp, .gif, .mp4).

    A film with a grid shows that many paths at once: path n goes through each seed + 1000 n, or begins at the n-th
    saved latent.  A picture with a grid breaks its frames into rows.  In films the image changes at constant speed.
    """
    if config.path is InterpolationPath.walk and config.latents is not None:
        raise UserError("path=walk passes through no images of latents=.", "Leave out latents=.")
    target, frames = output_path(config.out, config.run, "interpolation", ".png"), config.frames
    animated = target.suffix.lower() in ANIMATED
    columns, rows = parse_grid(config.grid, "grid") if config.grid else (1 if animated else frames, 1)
    generator, settings = opened(config, config.truncation)
    side, seeds = settings.resolution, "0-4" if config.seeds is None else config.seeds
    zoom = config.zoom or (film_zoom(columns * side, rows * side) if animated else sheet_zoom(side, columns))
    distances = partial(visible_steps, generator, settings) if animated else None
    paths = []
    for number in range(columns * rows if animated else 1):
        if config.path is InterpolationPath.walk:
            paths.append(steady_walk(parse_seeds(seeds)[0] + 1000 * number, generator.latent_size, frames, distances))
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


def project_images(config: ProjectConfig) -> int:
    """Write the latents whose images are nearest to given ones, and a sheet of each image and its reconstruction."""
    paths = config.image
    generator, settings = opened(config)
    side, channels = settings.resolution, generator.network.architecture.channels
    targets = [read_target(path, side, channels) for path in paths]
    latents, images, captions = [], [], []
    out = make_folder(output_path(config.out, config.run, "projection"), "out")
    for path, target in zip(paths, targets, strict=True):
        found = project(generator.network, target, settings, config.steps)
        print(f"{path}: PSNR {found.psnr:.1f} dB, distance {found.distance:.4f}")
        latents.append(found.latent)
        images += [target, found.image]
        captions += [Path(path).name, f"PSNR {found.psnr:.1f} dB"]
    save_vectors("latents", torch.stack(latents), out / "latents.safetensors", {"sources": paths})
    columns = 2 * min(len(paths), PAIRS)
    rows, tile = ceil(len(images) / columns), side * sheet_zoom(side, columns)
    save_picture(sheet(images, columns, rows, tile, captions), out / "projection.png")
    print(f"{out}: latents.safetensors, projection.png")
    print(next_command("sample", **config.generator_keys, latents=out / "latents.safetensors"))
    return 0


def find_directions(config: DirectionsConfig) -> int:
    """Write directions, and a sheet of what they do, with a row for each direction and seed."""
    seeds = parse_seeds(config.seeds)
    generator, settings = opened(config)
    directions = principal_directions(generator.network, min(config.count, generator.latent_size), settings.label)
    out = check_output(str(output_path(config.out, config.run, "directions", ".safetensors")), (".safetensors",))
    save_vectors("directions", directions, out, {**config.generator_keys, "images": generator.images})
    strengths = torch.linspace(-config.strength, config.strength, STRENGTHS).tolist()
    rows = [(n, latent) for n in range(len(directions)) for latent in generator.latents(seeds)]
    moved = [move(latent[None], directions[n], by)[0] for n, latent in rows for by in strengths]
    captions = [f"{n}: {by:+.1f}" for n, _ in rows for by in strengths]
    side = settings.resolution * sheet_zoom(settings.resolution, STRENGTHS)
    shown = out.with_suffix(".png")
    save_picture(sheet(generator.stream(moved, settings), STRENGTHS, len(rows), side, captions), shown)
    print(f"{out}: {len(directions)} directions of {generator.latent_size} numbers, shown in {shown}")
    print(next_command("sample", "seeds=0-7", "strength=-3,0,3", **config.generator_keys, direction=out))
    return 0
