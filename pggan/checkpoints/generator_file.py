"""The averaged generator as one safetensors file, with its architecture in the header: what people keep and share."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from pggan.checkpoints.header import (
    CLASS_NAMES,
    HEADER_KEY,
    PROVENANCE,
    VERSION,
    architecture_to_plain,
    check_class_names,
    check_provenance,
    check_stage,
    read_generator_header,
    refusing_generators,
    require_shapes,
)
from pggan.checkpoints.read import generator_path
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.core.tensor_file import save_tensors
from pggan.networks.networks import Generator


@dataclass(frozen=True)
class LoadedGenerator:
    """A generator to draw images with, and the stage of training that it was saved at."""

    network: Generator
    resolution: int
    alpha: float
    images: int
    class_names: tuple[str, ...] = ()  # of the classes, where they are known
    path: Path | None = None  # of the file, where it was read from one
    license: str | None = None  # of the weights, by its name on Hugging Face
    data_statement: str | None = None  # about the images that it was trained with


def load_generator(run: str, device: torch.device, key: str = "run") -> LoadedGenerator:
    """The averaged generator of the run, checkpoint, file or pretrained:NAME that `key` gives.

    Raises UserError without a valid one.
    """
    path = generator_path(run, key)
    with refusing_generators(path):
        about = read_generator_header(path)
        architecture = check_stage(about)
        with torch.device("meta"):  # the file has to hold as much as is then allocated
            require_shapes(path, Generator(architecture))
        network = Generator(architecture)
        network.load_state_dict(load_file(path))
    require_finite_weights(path, network)
    network.requires_grad_(False).to(device)
    names = check_class_names(about, architecture)
    stage = about["resolution"], float(about["alpha"]), about["images"]
    return LoadedGenerator(network, *stage, names, path, **check_provenance(about))


def require_finite_weights(path: Path, network: Generator) -> None:
    """Raise UserError where weights of the file at `path` are NaN or infinite: its images would be black."""
    for name, tensor in network.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):
            problem = f"{path} is damaged: its weights {name} are NaN or infinite."
            raise UserError(problem, "Choose another checkpoint=, or an undamaged copy.")


def describe_generator(generator: LoadedGenerator) -> dict[str, Any]:
    """The header of a generator file: version, images, resolution, alpha, architecture, and what else is known."""
    stage = {"images": generator.images, "resolution": generator.resolution, "alpha": generator.alpha}
    names = {CLASS_NAMES: list(generator.class_names)} if generator.class_names else {}
    architecture = architecture_to_plain(generator.network.architecture)
    stated = {name: text for name in PROVENANCE if (text := getattr(generator, name)) is not None}
    return {"version": VERSION, **stage, "architecture": architecture, **names, **stated}


def save_generator(generator: LoadedGenerator, path: Path) -> None:
    """Write a file that `load_generator` reads; raises OSError."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in generator.network.state_dict().items()}
    with atomic_write(path) as temporary:
        save_tensors(tensors, temporary, {HEADER_KEY: json.dumps(describe_generator(generator))})
