"""`pggan directions`: directions of latents along which images change, and a contact sheet of what they do."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.config import DirectionMethod, DirectionsConfig
from pggan.config.parse import generator_keys, listed, parse_seeds
from pggan.core.devices import set_threads
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.sampling.generate import RenderSettings
from pggan.sampling.latents.directions import (
    direction_between,
    directions_of_activations,
    directions_of_weights,
    move,
    save_directions,
)
from pggan.sampling.latents.latents import load_latents, seed_latents
from pggan.sampling.output.images import check_output
from pggan.sampling.output.output_path import next_output
from pggan.sampling.output.sheet import Tile, automatic_zoom, save_sheet
from pggan.sampling.trained_generator import TrainedGenerator, load

STEPS = 7  # images from one border of the contact sheet to the other


def run(config: DirectionsConfig) -> int:
    """Write the directions, and a sheet with a row for each direction and seed; returns the exit code."""
    set_threads(config.threads)
    seeds = parse_seeds(config.seeds)
    generator = load(config.run, config.device, config.checkpoint)
    settings = generator.settings(resolution=config.resolution, alpha=config.alpha, label=config.label)
    file = config.out if config.out is not None else str(next_output(config.run, "directions", ".safetensors"))
    directions = compute_directions(config, generator, settings)
    out = check_output(file, (".safetensors",))
    about = {"method": config.method.value, **generator_keys(config), "images": generator.images}
    save_directions(directions, out, about)
    sheet, rows = out.with_suffix(".png"), len(directions) * len(seeds)
    strengths = torch.linspace(-config.strength, config.strength, STEPS).tolist()
    latents = torch.stack(
        [move(generator.latents(seeds), direction, by) for direction in directions for by in strengths], 1
    )

    def tiles() -> Iterator[Tile]:
        ordered = latents.view(len(seeds), len(directions), STEPS, -1).transpose(0, 1).flatten(0, 2)
        captions = (f"{n}: {by:+.1f}" for n in range(len(directions)) for _ in seeds for by in strengths)
        yield from map(Tile, generator.stream(ordered, settings), captions)

    side = settings.resolution * automatic_zoom(settings.resolution, STEPS)
    save_sheet(tiles(), sheet, STEPS, rows, side, captions=True)
    several = "s" * (len(directions) > 1)
    print(f"{out}: {len(directions)} direction{several} of {generator.latent_size} numbers, shown in {sheet}")
    print(next_command("sample", "seeds=0-7", "strength=-3,0,3", **generator_keys(config), direction=out))
    return 0


def compute_directions(config: DirectionsConfig, generator: TrainedGenerator, settings: RenderSettings) -> Tensor:
    """The directions [K, Z] by the method asked for."""
    count = min(config.count, generator.latent_size)
    if config.method is DirectionMethod.weights:
        return directions_of_weights(generator.network, count)
    if config.method is DirectionMethod.activations:
        labels = None
        if settings.label is not None:
            labels = F.one_hot(torch.tensor([settings.label]), generator.num_classes).float()
        return directions_of_activations(generator.network, count, labels)
    return direction_between(
        latents_of_set(config.negative, generator.latent_size, "negative"),
        latents_of_set(config.positive, generator.latent_size, "positive"),
    )


def latents_of_set(given: Any, size: int, key: str) -> Tensor:
    """The latents [N, Z] of a file, or of seeds."""
    if str(given).endswith(".safetensors"):
        return load_latents(given, size, key)
    names = [str(name) for name in listed(given)]
    if any(Path(name).is_file() for name in names):
        together = ",".join(names)
        remedy = f"Find latents of images first: pggan project image={together}, which writes such a file."
        raise UserError(f"{key}={together} is no file of latents.", remedy)
    return seed_latents(parse_seeds(given, key), size)
