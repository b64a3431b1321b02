"""`pggan project`: the latents of given images, and how near the generator comes to them."""

from functools import partial
from math import ceil
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from pggan.config.commands import ProjectConfig
from pggan.core.devices import set_threads
from pggan.core.text import next_command
from pggan.sampling.images import new_folder, output_path, save_png, sheet, sheet_zoom
from pggan.sampling.latents import save_latents
from pggan.sampling.projection import project, read_target
from pggan.sampling.trained_generator import load

PAIRS = 4  # of an image and its reconstruction, side by side


def run(config: ProjectConfig) -> int:
    """Write latents.safetensors and projection.png, each image beside its reconstruction; returns the exit code."""
    set_threads(config.threads)
    paths = config.image
    generator = load(config.run, config.device, config.checkpoint)
    settings = generator.settings(resolution=config.resolution, alpha=config.alpha, label=config.label)
    side = settings.resolution
    targets = [read_target(path, side, generator.network.architecture.channels) for path in paths]
    latents, images, captions = [], [], []
    console = Console(stderr=True)
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    with new_folder(output_path(config.out, config.run, "projection"), "out") as out, progress as bars:
        for path, target in zip(paths, targets, strict=True):
            name = Path(path).name
            on_step = partial(bars.advance, bars.add_task(name, total=config.steps))
            found = project(generator.network, target, settings, config.steps, on_step)
            print(f"{path}: PSNR {found.psnr:.1f} dB, distance {found.distance:.4f}")
            latents.append(found.latent)
            images += [target, found.image]
            captions += [name, f"PSNR {found.psnr:.1f} dB"]
    save_latents(torch.stack(latents), out / "latents.safetensors", paths)
    columns = 2 * min(len(paths), PAIRS)
    rows, tile = ceil(len(images) / columns), side * sheet_zoom(side, columns)
    save_png(sheet(images, columns, rows, tile, captions), out / "projection.png")
    print(f"{out}: latents.safetensors, projection.png")
    print(next_command("sample", **config.generator_keys, latents=out / "latents.safetensors"))
    return 0
