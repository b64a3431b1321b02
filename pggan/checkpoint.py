"""The state on disk: safetensors and JSON only, each file with its checksum, whole or not at all.

checkpoints/<images>/generator.safetensors  discriminator.  average.  optimizer_g.  optimizer_d.  state.json
generator.safetensors                       the averaged generator, with its architecture in the header
"""

import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from pggan.architecture import Architecture, Resampling
from pggan.errors import UserError
from pggan.files import file_sha256, sweep, whole_directory, whole_file
from pggan.networks import Generator
from pggan.schedule import Phase
from pggan.state import State, state_sha256

VERSION = 1
STATE_FILE = "state.json"
GENERATOR_FILE = "generator.safetensors"
HEADER_KEY = "pggan"

Parts = dict[str, dict[str, Tensor]]


class Broken(Exception):
    """A checkpoint that can't be trusted: a file is missing, cut short or changed."""


@dataclass(frozen=True)
class Checkpoint:
    """One directory under `checkpoints/`, its JSON read and its files verified."""

    directory: Path
    header: dict[str, Any]

    @property
    def images(self) -> int:
        return int(self.header["images"])

    @property
    def architecture(self) -> Architecture:
        return architecture_from(self.header["architecture"])

    def restore(self, state: State) -> None:
        """Put the saved state into `state`, whose networks have this checkpoint's architecture."""
        state.load_tensors({part: load_file(self.directory / f"{part}.safetensors") for part in state.tensors()})
        state.images = self.images
        state.phase_index = int(self.header["phase_index"])


def save_checkpoint(run_dir: Path, state: State, phase: Phase, config: dict[str, Any], keep: int) -> str:
    """Write the state and the generator into `run_dir`, drop all but the newest `keep`; returns `state_sha256`."""
    checkpoints = run_dir / "checkpoints"
    parts = {
        part: {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        for part, tensors in state.tensors().items()
    }
    architecture = state.average.architecture
    header = {
        "version": VERSION,
        "images": state.images,
        "phase_index": state.phase_index,
        "phase": phase.name,
        "resolution": phase.resolution,
        "alpha": phase.alpha,
        "architecture": architecture_to_plain(architecture),
        "state_sha256": state_sha256(parts, state.images, state.phase_index),
        "config": config,
    }
    about = {key: header[key] for key in ("version", "images", "phase", "resolution", "alpha", "architecture")}
    metadata = {HEADER_KEY: json.dumps(about)}
    with whole_directory(checkpoints / f"{state.images:09d}") as directory:
        for part, tensors in parts.items():
            save_file(tensors, directory / f"{part}.safetensors", metadata=metadata)
        header["files"] = {file.name: file_sha256(file) for file in sorted(directory.iterdir())}
        (directory / STATE_FILE).write_text(json.dumps(header, indent=1))
    with whole_file(run_dir / GENERATOR_FILE) as temporary:
        save_file(parts["average"], temporary, metadata=metadata)
    for old in sorted(checkpoints.iterdir())[:-keep]:
        shutil.rmtree(old)
    return str(header["state_sha256"])


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify one checkpoint directory; raises Broken, or UserError when a newer version wrote it."""
    try:
        header = json.loads((directory / STATE_FILE).read_text())
        files: dict[str, str] = header["files"]
        version = header["version"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Broken(f"{directory / STATE_FILE}: {error}") from error
    if version != VERSION:
        raise UserError(
            f"{directory} has checkpoint version {version}; this is for version {VERSION}.", "Update pggan."
        )
    for name, checksum in files.items():
        if Path(name).name != name:
            raise Broken(f"{directory / STATE_FILE} lists a file outside its directory: {name}")
        if not (directory / name).is_file() or file_sha256(directory / name) != checksum:
            raise Broken(f"{directory / name} is missing or has changed")
    return Checkpoint(directory, header)


def newest_checkpoint(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a run that is whole, and what is wrong with the newer ones."""
    checkpoints = run_dir / "checkpoints"
    if not checkpoints.is_dir():
        return None, []
    sweep(checkpoints)
    sweep(run_dir)
    broken: list[str] = []
    for directory in sorted(checkpoints.iterdir(), reverse=True):
        try:
            return open_checkpoint(directory), broken
        except Broken as problem:
            broken.append(str(problem))
    return None, broken


@dataclass(frozen=True)
class LoadedGenerator:
    """A generator to draw images with, and the stage that it was saved at."""

    network: Generator
    resolution: int
    alpha: float
    images: int


def load_generator(run: str, device: torch.device) -> LoadedGenerator:
    """The averaged generator of a run directory, a checkpoint directory or a generator.safetensors.

    Raises UserError when there is none, or when the file is not one of ours.
    """
    path = Path(run)
    if path.is_dir():
        path = next((path / name for name in ("average.safetensors", GENERATOR_FILE) if (path / name).is_file()), path)
    if not path.is_file():
        raise UserError(
            f"run={run}: there is no generator.",
            "Give a run directory, one of its checkpoints/<images>, or a generator.safetensors. "
            "A run has its first generator after its first checkpoint.",
        )
    try:
        with safe_open(path, "pt") as file:
            about = json.loads((file.metadata() or {})[HEADER_KEY])
        network = Generator(architecture_from(about["architecture"]))
        network.load_state_dict(load_file(path))
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise UserError(f"{path} is not a whole generator of this program.", f"Cause: {error}") from error
    return LoadedGenerator(
        network.requires_grad_(False).to(device),
        int(about["resolution"]),
        float(about["alpha"]),
        int(about["images"]),
    )


def architecture_to_plain(architecture: Architecture) -> dict[str, Any]:
    return {**asdict(architecture), "resampling": architecture.resampling.value}


def architecture_from(plain: dict[str, Any]) -> Architecture:
    return Architecture(**{**plain, "resampling": Resampling(plain["resampling"])})


def differences(ours: Architecture, theirs: Architecture) -> Iterator[str]:
    """The fields in which two architectures differ, as 'name: theirs -> ours'."""
    for name, value in asdict(ours).items():
        if value != getattr(theirs, name):
            yield f"{name}: {getattr(theirs, name)} -> {value}"
