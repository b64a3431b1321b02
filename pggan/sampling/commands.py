"""The commands `pggan sample`, `interpolate`, `project` and `directions`: each function returns an exit code."""

from functools import partial
from itertools import islice
from math import ceil, sqrt
from pathlib import Path

import torch
from torch import Tensor

from pggan.config.commands import (
    DirectionsConfig,
    DrawConfig,
    InterpolateConfig,
    PicturesConfig,
    ProjectConfig,
    SampleConfig,
)
from pggan.config.train import parse_grid
from pggan.core.devices import set_threads
from pggan.core.errors import UserError, require
from pggan.core.text import next_command
from pggan.sampling.files import (
    ANIMATED,
    STILLS,
    film_zoom,
    output_path,
    save_film,
    save_picture,
    sheet,
    sheet_zoom,
    tracked,
)
from pggan.sampling.generate import RenderSettings
from pggan.sampling.latents import (
    load_direction,
    load_vectors,
    move,
    parse_seeds,
    path_through,
    principal_directions,
    random_walk,
    save_vectors,
)
from pggan.sampling.marks import BESIDE, mark_line
from pggan.sampling.projection import project, read_target
from pggan.sampling.trained_generator import TrainedGenerator, load

MOST_PIXELS = 2**28  # Pictures with more pixels are refused, because a few copies of them may not fit into memory.
STRENGTHS = 7  # number of columns in the picture of `pggan directions`


def opened(config: DrawConfig, truncation: float = 1.0) -> tuple[TrainedGenerator, RenderSettings]:
    """Load the generator of `config.run`; returns the generator and the settings in `config` for drawing images."""
    set_threads(config.threads)
    generator = load(config.run, config.device, config.checkpoint)
    return generator, generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=truncation, label=config.label
    )


def keyframes(generator: TrainedGenerator, config: PicturesConfig, number: int = 0) -> tuple[Tensor, list[str]]:
    """Return the K latents [K, Z] of `config` for a film's cell `number` (see `interpolate`), and K file names."""
    if config.latents is None:
        wanted = [seed + 1000 * number for seed in parse_seeds(config.seeds)]
        return generator.latents(wanted), [f"seed-{seed:06d}" for seed in wanted]
    found = torch.cat([load_vectors("latents", path, generator.latent_size) for path in config.latents])
    return found.roll(-number, 0), [f"latent-{index:06d}" for index in range(len(found))]


def require_size(count: int, side: int, zoom: int, grid: str | None) -> None:
    """Raise UserError if `grid` has fewer than `count` cells, or if the picture has more than MOST_PIXELS pixels."""
    columns, rows = parse_grid(grid, "grid") if grid else (count, 1)
    require(count <= columns * rows, "grid", grid, f"columns x rows, with at least {count} cells")
    if (pixels := count * (side * zoom) ** 2) > MOST_PIXELS:
        problem = f"A picture of {count:,} images of {side}x{side}, enlarged by zoom={zoom}, has {pixels:,} pixels."
        raise UserError(problem, f"At most {MOST_PIXELS:,} are possible: lower zoom=, or draw fewer images.")


def drawn_by(config: PicturesConfig) -> str | None:
    """Return the description for a picture's metadata (see `mark_line`); None if config.marks is false."""
    latents = f"seeds={config.seeds}" if config.latents is None else f"latents={','.join(config.latents)}"
    return mark_line(config.marks, config.run, latents)


def sample(config: SampleConfig) -> int:
    """Draw images onto one sheet (out=….png, .jpg or .webp), or each image into its own file (out=DIRECTORY)."""
    out = output_path(config.out, config.run, "sample", (*STILLS, ""))
    generator, settings = opened(config, config.truncation)
    latents, names = keyframes(generator, config)
    columns = parse_grid(config.grid, "grid")[0] if config.grid else ceil(sqrt(len(latents)))
    if config.direction is not None:
        direction = load_direction(config.direction, generator.latent_size)
        latents = torch.stack([move(latents, direction, strength) for strength in config.strength], 1).flatten(0, 1)
        names = [f"{name}{strength:+g}" for name in names for strength in config.strength]
        columns = len(config.strength) if len(config.strength) > 1 and not config.grid else columns
    side = settings.resolution
    zoom = config.zoom or (sheet_zoom(side, columns) if out.suffix else 1)
    require_size(len(latents) if out.suffix else 1, side, zoom, config.grid)
    images = tracked(generator.stream(latents, settings), len(latents))
    if out.suffix:
        save_picture(sheet(images, columns, zoom), out, drawn_by(config))
    else:
        for name, image in zip(names, images, strict=True):
            save_picture(sheet([image], 1, zoom), out / f"{name}.png", mark_line(config.marks, config.run, name))
    print(f"{out}: {len(latents)} image{'s' * (len(latents) > 1)} at {side}x{side}, alpha {settings.alpha:g}")
    print(next_command("interpolate", "path=loop", "frames=90", "out=loop.webp", **config.generator_keys))
    return 0


def interpolate(config: InterpolateConfig) -> int:
    """Interpolate between latents, and write all frames as a picture (.png) or as a film (.webp, .gif, .mp4).

    Each cell of a film's grid= shows its own path: cell n adds 1000 n to all seeds, or starts at latent n of latents=.
    """
    walks, frames = config.path == "walk", config.frames
    if walks and config.latents is not None:
        raise UserError("path=walk is a random walk, which can't visit given latents.", "Leave out latents=.")
    out = output_path(config.out, config.run, "interpolation", (*STILLS, *ANIMATED))
    animated = out.suffix.lower() in ANIMATED
    columns, rows = parse_grid(config.grid, "grid") if config.grid else (1 if animated else frames, 1)
    generator, settings = opened(config, config.truncation)
    side = settings.resolution
    distances = partial(generator.visible_steps, settings) if animated else None
    paths = []
    for number in range(columns * rows if animated else 1):
        if walks:
            paths.append(random_walk(parse_seeds(config.seeds)[0] + 1000 * number, generator.latent_size, frames))
        else:
            paths.append(path_through(keyframes(generator, config, number)[0], config.path, frames, distances))
    images = generator.stream(torch.stack(paths, 1).flatten(0, 1), settings)
    zoom = config.zoom or (film_zoom(max(columns, rows) * side) if animated else sheet_zoom(side, columns))
    require_size(len(paths) if animated else frames, side, zoom, config.grid)
    if animated:
        shown = (sheet(islice(images, len(paths)), columns, zoom) for _ in range(frames))
        save_film(shown, frames, config.fps, out, drawn_by(config))
    else:
        save_picture(sheet(images, columns, zoom), out, drawn_by(config))
    print(f"{out}: {frames} frames at {side}x{side}, {config.path}")
    print(next_command("explore", run=config.run))
    return 0


def project_images(config: ProjectConfig) -> int:
    """Find the latent whose image is nearest to each config.image; writes latents.safetensors, projection.png."""
    out = output_path(config.out, config.run, "projection", ())
    generator, settings = opened(config)
    side, channels = settings.resolution, generator.network.architecture.channels
    targets = [read_target(path, side, channels) for path in config.image]
    sources, latents, images, captions = [], [], [], []
    for path, target in zip(config.image, targets, strict=True):
        found = project(generator.network, target, settings, config.steps)
        print(f"{path}: PSNR {found.psnr:.1f} dB")
        sources.append(path)
        latents.append(found.latent)
        images += [target, found.image]
        captions += [Path(path).name, f"PSNR {found.psnr:.1f} dB"]
        # Files are written after each image, so that an interruption loses no results.
        save_vectors("latents", torch.stack(latents), out / "latents.safetensors", {"sources": sources})
        mark = mark_line(config.marks, config.run, f"projections of {', '.join(sources)}", BESIDE)
        save_picture(sheet(images, 2, sheet_zoom(side, 2), captions), out / "projection.png", mark)
    print(f"{out}: latents.safetensors, projection.png")
    print(next_command("sample", **config.generator_keys, latents=out / "latents.safetensors"))
    return 0


def find_directions(config: DirectionsConfig) -> int:
    """Write principal directions of latent space, and draw a sheet: each row moves one latent along one direction."""
    out = output_path(config.out, config.run, "directions", (".safetensors",))
    generator, settings = opened(config)
    latents, size = generator.latents(config.seeds), generator.latent_size
    directions = principal_directions(generator.network, config.count, settings.label)
    save_vectors("directions", directions, out, {**config.generator_keys, "images": generator.images})
    strengths = torch.linspace(-config.strength, config.strength, STRENGTHS).tolist()
    rows = [(n, latent) for n in range(len(directions)) for latent in latents]
    moved = torch.cat([move(latent[None], directions[n], by) for n, latent in rows for by in strengths])
    captions = [f"{n + 1}: {by:+.1f}" for n, _ in rows for by in strengths]
    images, zoom = generator.stream(moved, settings), sheet_zoom(settings.resolution, STRENGTHS)
    shown = out.with_suffix(".png")
    mark = mark_line(config.marks, config.run, f"seeds={config.seeds}, moved along directions")
    save_picture(sheet(images, STRENGTHS, zoom, captions), shown, mark)
    print(f"{out}: {len(directions)} directions of {size} numbers, shown in {shown}")
    print(next_command("sample", "seeds=0-7", "strength=-3,0,3", **config.generator_keys, direction=out))
    return 0
