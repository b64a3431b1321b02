"""`pggan project`: the latents of given images, and how near the generator comes to them."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress, TaskID

from pggan.config import ProjectConfig
from pggan.config.parse import generator_keys, listed
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import choose_device, set_threads
from pggan.core.next_command import next_command
from pggan.sampling.latents.latents import save_latents
from pggan.sampling.output.images import new_folder
from pggan.sampling.output.output_path import next_output
from pggan.sampling.output.sheet import Tile, automatic_zoom, save_sheet
from pggan.sampling.perceptual import load_distance
from pggan.sampling.projection import Projection, ProjectionSettings, project
from pggan.sampling.target_image import read_target
from pggan.sampling.trained_generator import load

PAIRS = 4  # of an image and its reconstruction, side by side


def run(config: ProjectConfig) -> int:
    """Write latents.safetensors, projection.png (each image beside its reconstruction) and projection.json."""
    set_threads(config.threads)
    paths = [str(path) for path in listed(config.image)]
    distance = load_distance(config.distance, choose_device(config.device, "device"))
    generator = load(config.run, config.device, config.checkpoint)
    settings = generator.settings(resolution=config.resolution, alpha=config.alpha, label=config.label)
    side, channels = settings.resolution, generator.network.architecture.channels
    targets = [read_target(path, side, channels) for path in paths]
    place = Path(config.out) if config.out is not None else next_output(config.run, "projection")
    how = ProjectionSettings(
        config.steps, config.starts, config.candidates, config.learning_rate, config.noise, config.seed
    )
    found: list[Projection] = []
    console = Console(stderr=True)
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    with new_folder(place, "out") as out, progress as bars:
        for path, target in zip(paths, targets, strict=True):
            on_progress = partial(show, bars, bars.add_task(Path(path).name, total=how.steps), Path(path).name)
            found.append(project(generator.network, target, settings, how, distance=distance, on_progress=on_progress))
            print(f"{path}: PSNR {found[-1].psnr:.1f} dB, {config.distance} distance {found[-1].distance:.4f}")
    save_latents(torch.stack([one.latent for one in found]), out / "latents.safetensors", paths)
    about = {**generator_keys(config), "images": generator.images, "distance": config.distance, **asdict(how)}
    write_report(about, paths, found, out / "projection.json")

    def tiles() -> Iterator[Tile]:
        for path, target, one in zip(paths, targets, found, strict=True):
            yield Tile(target, Path(path).name)
            yield Tile(one.image, f"PSNR {one.psnr:.1f} dB")

    columns = 2 * min(len(paths), PAIRS)
    rows, tile = ceil(2 * len(paths) / columns), side * automatic_zoom(side, columns)
    save_sheet(tiles(), out / "projection.png", columns, rows, tile, captions=True)
    print(f"{out}: latents.safetensors, projection.png, projection.json")
    print(next_command("sample", **generator_keys(config), latents=out / "latents.safetensors"))
    return 0


def show(bars: Progress, bar: TaskID, name: str, step: int, nearest: float) -> None:
    """Show in the `bar` of an image how far its projection is."""
    bars.update(bar, completed=step, description=f"{name}: distance {nearest:.4f}")


def write_report(about: dict[str, Any], paths: list[str], found: list[Projection], path: Path) -> None:
    """Write what was asked for and what came out as JSON; a PSNR of null is infinite.

    Args: about: how all of them were found.
    """
    projections = [
        {
            "image": image,
            "psnr_db": one.psnr if isfinite(one.psnr) else None,
            "distance": one.distance,
            "start_seed": one.start,
        }
        for image, one in zip(paths, found, strict=True)
    ]
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps({**about, "projections": projections}, indent=1))
