"""`pggan sample`: images of a generator, or the same ones of several."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, sqrt
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import track
from torch import Tensor

from pggan.config import SampleConfig
from pggan.config.parse import generator_keys, listed, parse_grid, parse_seeds
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.sampling.generate import RenderSettings
from pggan.sampling.latents.directions import load_direction, move
from pggan.sampling.latents.latents import load_latents
from pggan.sampling.output.images import STILLS, Pixels, check_output, enlarge, make_folder, save_png
from pggan.sampling.output.output_path import next_output
from pggan.sampling.output.sheet import Tile, automatic_zoom, save_sheet
from pggan.sampling.trained_generator import TrainedGenerator, load

SEEDS = "0-63"  # where neither seeds nor latents are named
LONG = 256  # images from which a progress bar is shown


@dataclass(frozen=True)
class Series:
    """Images of one generator: how they are drawn, their latents [N, Z], and a name for each, such as seed 7."""

    generator: TrainedGenerator
    settings: RenderSettings
    latents: Tensor
    names: list[tuple[str, int]]

    def images(self) -> Iterator[Pixels]:
        """Each image, as it is drawn."""
        return self.generator.stream(self.latents, self.settings)


def run(config: SampleConfig) -> int:
    """Write a contact sheet (out=….png or .jpg), or one file per image (out=DIRECTORY); returns the exit code."""
    set_threads(config.threads)
    paths = [str(path) for path in listed(config.run)]
    strengths = listed(config.strength) if config.direction is not None else [None]
    target = Path(config.out) if config.out is not None else next_output(paths[0], "sample", ".png")
    if not target.suffix and len(paths) * len(strengths) > 1:
        raise UserError("A directory takes the images of one run at one strength.", "Write a sheet: out=FILE.png.")
    series = [series_of(config, load(path, config.device, config.checkpoint)) for path in paths]
    if len({one.generator.network.architecture.channels for one in series}) > 1:
        raise UserError("These runs draw images of different channels.", "Draw each in a sheet of its own.")
    count, resolution = sum(len(one.latents) for one in series), max(one.settings.resolution for one in series)
    columns, rows = grid_of(config.grid, count)
    if len(paths) * len(strengths) > 1:
        columns = len(strengths) if len(strengths) > 1 else len(series[0].names)
        rows = count // columns
    images = with_progress((image for one in series for image in one.images()), count)
    if target.suffix:
        out = check_output(str(target), STILLS)
        side = resolution * (config.zoom or automatic_zoom(resolution, columns))
        tiles = map(Tile, images, captions_of(series, strengths))
        save_sheet(tiles, out, columns, rows, side, captions=config.captions)
    else:
        out = make_folder(target, "out")
        for (word, number), image in zip(series[0].names, images, strict=True):
            save_png(enlarge(image[None], config.zoom or 1)[0], out / f"{word}-{number:06d}.png")
    print(f"{out}: {count} images at {resolution}x{resolution}, alpha {series[0].settings.alpha:g}")
    print(next_command("interpolate", "path=loop", "out=loop.webp", **{**generator_keys(config), "run": paths[0]}))
    return 0


def series_of(config: SampleConfig, generator: TrainedGenerator) -> Series:
    """The images of one generator; those of one latent at several strengths follow each other."""
    settings = generator.settings(
        resolution=config.resolution, alpha=config.alpha, truncation=config.truncation, label=config.label
    )
    size = generator.latent_size
    if config.latents is None:
        seeds = parse_seeds(SEEDS if config.seeds is None else config.seeds)
        latents, names = generator.latents(seeds), [("seed", seed) for seed in seeds]
    else:
        latents = torch.cat([load_latents(path, size) for path in listed(config.latents)])
        names = [("latent", number) for number in range(len(latents))]
    if config.direction is not None:
        direction = load_direction(config.direction, size)
        latents = torch.stack([move(latents, direction, strength) for strength in listed(config.strength)], 1)
        latents = latents.flatten(0, 1)
    return Series(generator, settings, latents, names)


def captions_of(series: list[Series], strengths: list[float | None]) -> Iterator[str]:
    """The caption of each image: seed or latent, strength of the direction, and the images shown where runs differ."""
    for one in series:
        stage = f", {one.generator.images:,} images" if len(series) > 1 else ""
        for word, number in one.names:
            for strength in strengths:
                yield f"{word} {number}{'' if strength is None else f', {strength:+g}'}{stage}"


def grid_of(grid: str | None, count: int) -> tuple[int, int]:
    """Columns and rows for `count` images: as given, or a square; raises UserError where there is too little room."""
    columns, rows = parse_grid(grid, "grid") if grid else (ceil(sqrt(count)), ceil(count / ceil(sqrt(count))))
    if columns * rows < count:
        raise UserError(f"grid={grid} has no room for {count} images.", "Use a larger grid or fewer seeds.")
    return columns, rows


def with_progress(images: Iterable[Pixels], count: int) -> Iterable[Pixels]:
    """`images`, with a bar on stderr where there are many."""
    console = Console(stderr=True)
    if count < LONG or not console.is_terminal:
        return images
    return track(images, "Drawing", count, console=console, transient=True)
