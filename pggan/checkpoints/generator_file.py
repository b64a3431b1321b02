"""The averaged generator as one safetensors file, with its architecture in the header: what people keep and share."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from pggan.checkpoints.header import (
    GENERATOR_FILE,
    HEADER_KEY,
    STATE_FILE,
    architecture_from,
    check_stage,
    require_shapes,
)
from pggan.core.atomic_io import parse_json
from pggan.core.errors import UserError
from pggan.networks.networks import Generator


@dataclass(frozen=True)
class LoadedGenerator:
    """A generator to draw images with, and the stage of training that it was saved at."""

    network: Generator
    resolution: int
    alpha: float
    images: int


def load_generator(run: str, device: torch.device, key: str = "run") -> LoadedGenerator:
    """The averaged generator of a run directory, a checkpoint directory or a generator file, which `key` names.

    Raises UserError when there is none, or when the file is not a valid one.
    """
    path = Path(run)
    if path.is_dir():  # a checkpoint, whose own generator.safetensors is not the averaged one, or a run
        path = path / ("generator_ema.safetensors" if (path / STATE_FILE).exists() else GENERATOR_FILE)
    if not path.exists() or path.is_dir():
        raise UserError(
            f"{key}={run}: there is no generator.",
            "Give a run directory, one of its checkpoints/<images>, or a generator.safetensors. "
            "A run has its first generator after its first checkpoint.",
        )
    try:
        if not path.is_file():
            raise ValueError("it is not a plain file")
        with safe_open(path, "pt") as file:
            about = parse_json((file.metadata() or {})[HEADER_KEY])
        check_stage(about)
        architecture = architecture_from(about["architecture"])
        with torch.device("meta"):  # the file has to hold as much as is then allocated
            require_shapes(path, Generator(architecture))
        network = Generator(architecture)
        network.load_state_dict(load_file(path))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path} is not a valid generator of this program.", f"Cause: {error}") from error
    network.requires_grad_(False).to(device)
    return LoadedGenerator(network, about["resolution"], float(about["alpha"]), about["images"])
