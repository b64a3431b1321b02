"""The state on disk: safetensors and JSON only, each file with its checksum, whole or not at all.

checkpoints/<images>/generator.safetensors  discriminator.  average.  optimizer_g.  optimizer_d.  state.json
generator.safetensors                       the averaged generator, with its architecture in the header

What is read may come from anywhere: sizes and shapes are checked against the architecture before anything is allocated.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from pggan.core.architecture import MOST, SMALLEST_RESOLUTION, Architecture, Resampling, is_power_of_two
from pggan.core.atomic_io import file_sha256, is_plain, parse_json, read_json
from pggan.core.errors import UserError
from pggan.networks.networks import Discriminator, Generator, count_parameters
from pggan.training.state import State

VERSION = 2  # 1 had no checksum of state.json itself
STATE_FILE = "state.json"
GENERATOR_FILE = "generator.safetensors"
HEADER_KEY = "pggan"
CHECKSUM = "sha256"  # of everything else in state.json
BEFORE_ALL = -1  # the index of the phase before the first update
PARTS = ("generator", "discriminator", "average", "optimizer_g", "optimizer_d")
MOST_STATE_BYTES = 4 * 2**20  # of state.json, which takes some kilobytes

Parts = dict[str, dict[str, Tensor]]


class Broken(Exception):
    """A checkpoint that can't be trusted: a file is missing, cut short, changed or not what it should be."""


# ---- reading ---------------------------------------------------------------------------------------------


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

    @property
    def parts(self) -> list[str]:
        return [Path(name).stem for name in self.header["files"] if name.endswith(".safetensors")]

    def load(self, part: str) -> dict[str, Tensor]:
        """The tensors of one part, in host memory."""
        return load_file(self.directory / f"{part}.safetensors")

    def restore(self, state: State) -> None:
        """Put the saved state into `state`, whose networks have this checkpoint's architecture.

        Raises UserError when the files, though unchanged, don't fit.
        """
        try:
            state.load_tensors({part: self.load(part) for part in state.tensors() if part in self.parts})
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
            raise UserError(
                f"{self.directory} does not fit: {error}.", "Remove this directory to go on from the checkpoint before."
            ) from error
        state.images = self.images
        state.phase_index = int(self.header["phase_index"])


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify one checkpoint directory; raises Broken, or UserError when a newer version wrote it."""
    try:
        header = read_json(directory / STATE_FILE, MOST_STATE_BYTES)
        _check_header(directory, header)
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise Broken(f"{directory / STATE_FILE}: {error}") from error
    _check_files(directory, header["files"], architecture_from(header["architecture"]))
    return Checkpoint(directory, header)


def _check_header(directory: Path, header: dict[str, Any]) -> None:
    """Raise ValueError (KeyError when missing) unless a state.json is one of ours, UserError if of a newer version."""
    version = header["version"]
    if require_count("version", version) > VERSION:
        raise UserError(
            f"{directory} has checkpoint version {version}; this reads up to version {VERSION}.", "Update pggan."
        )
    if version > 1 and header[CHECKSUM] != checksum_of(header):
        raise ValueError("its content has changed: the checksum is another one")
    _check_stage(header)
    if header["phase_index"] != BEFORE_ALL or header["images"] != 0:
        require_count("phase_index", header["phase_index"])
    if not isinstance(header["state_sha256"], str) or not isinstance(header["config"], dict):
        raise ValueError("'state_sha256' or 'config' is of the wrong type")
    _check_list(header["files"])


def _check_files(directory: Path, files: dict[str, str], architecture: Architecture) -> None:
    """Raise Broken unless `files` are there, no larger than the networks need, and unchanged."""
    with torch.device("meta"):  # shapes only
        generator, discriminator = Generator(architecture), Discriminator(architecture)
    networks = {"generator": generator, "average": generator, "discriminator": discriminator}
    most_bytes = 2**20 + 16 * (count_parameters(generator) + count_parameters(discriminator))
    for name in files:  # cheap checks of all files come first: checksums of large ones take a while
        path = directory / name
        try:
            if not is_plain(path):
                raise ValueError("it is missing, or not a plain file")
            if path.stat().st_size > most_bytes:
                raise ValueError("it is larger than its networks can need")
            if path.stem in networks:
                require_shapes(path, networks[path.stem])
        except (OSError, SafetensorError, ValueError) as error:
            raise Broken(f"{path}: {error}") from error
    for name, checksum in files.items():
        if file_sha256(directory / name) != checksum:
            raise Broken(f"{directory / name} has changed: its checksum is another one")


def _check_list(files: Any) -> None:
    """Raise ValueError unless a state.json lists the files that a save writes, with their checksums."""
    if not isinstance(files, dict) or not {f"{part}.safetensors" for part in PARTS} <= set(files):
        raise ValueError("it does not list the files of a checkpoint")
    for name, checksum in files.items():
        if not re.fullmatch(r"[a-z_]+\.safetensors", name):
            raise ValueError(f"it lists a file that may lie outside its directory: {name!r}")
        if not isinstance(checksum, str):
            raise ValueError(f"it has no checksum for {name}")


def checkpoints_of(run_dir: Path) -> list[Path]:
    """The checkpoint directories of a run, whole or not, the oldest first."""
    found = (run_dir / "checkpoints").glob("[0-9]*")
    return sorted(path for path in found if path.name.isdecimal() and path.is_dir() and not path.is_symlink())


def newest_checkpoint(run_dir: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint of a run that is whole, and what is wrong with the newer ones."""
    broken: list[str] = []
    for directory in reversed(checkpoints_of(run_dir)):
        try:
            return open_checkpoint(directory), broken
        except Broken as problem:
            broken.append(str(problem))
    return None, broken


# ---- generators ------------------------------------------------------------------------------------------


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
        path = next((path / name for name in ("average.safetensors", GENERATOR_FILE) if (path / name).exists()), path)
    if not path.exists() or path.is_dir():
        raise UserError(
            f"run={run}: there is no generator.",
            "Give a run directory, one of its checkpoints/<images>, or a generator.safetensors. "
            "A run has its first generator after its first checkpoint.",
        )
    try:
        if not path.is_file():
            raise ValueError("it is not a plain file")
        with safe_open(path, "pt") as file:
            about = parse_json((file.metadata() or {})[HEADER_KEY])
        _check_stage(about)
        architecture = architecture_from(about["architecture"])
        with torch.device("meta"):  # the file has to hold as much as is then allocated
            require_shapes(path, Generator(architecture))
        network = Generator(architecture)
        network.load_state_dict(load_file(path))
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise UserError(f"{path} is not a whole generator of this program.", f"Cause: {error}") from error
    return LoadedGenerator(
        network.requires_grad_(False).to(device),
        int(about["resolution"]),
        float(about["alpha"]),
        int(about["images"]),
    )


# ---- what headers say ------------------------------------------------------------------------------------


def require_count(name: str, value: object) -> int:
    """`value` if it is a whole number from 0 up; raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise ValueError(f"'{name}' is not a count")
    return value


def _check_stage(about: dict[str, Any]) -> None:
    """Raise ValueError (KeyError when missing) unless images, resolution and alpha are possible."""
    require_count("images", about["images"])
    resolution, alpha = require_count("resolution", about["resolution"]), about["alpha"]
    full = architecture_from(about["architecture"]).resolution
    if not (SMALLEST_RESOLUTION <= resolution <= full and is_power_of_two(resolution)):
        raise ValueError(f"its networks have no resolution {resolution}")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha!r} is not between 0 and 1")


def require_shapes(path: Path, network: nn.Module) -> None:
    """Raise ValueError unless the file holds exactly the tensors of `network`; SafetensorError if it is none."""
    with safe_open(path, "pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        stored = {name: (part.get_dtype(), tuple(part.get_shape())) for name, part in slices.items()}
    wanted = {name: ("F32", tuple(tensor.shape)) for name, tensor in network.state_dict().items()}
    if stored != wanted:
        name = min(name for name in {*stored, *wanted} if stored.get(name) != wanted.get(name))
        raise ValueError(f"{name} is {stored.get(name, 'missing')} where {wanted.get(name, 'nothing')} is expected")


def architecture_to_plain(architecture: Architecture) -> dict[str, Any]:
    return {**asdict(architecture), "resampling": architecture.resampling.value}


def architecture_from(plain: dict[str, Any]) -> Architecture:
    """The architecture that a header describes; raises ValueError, KeyError or TypeError when it is none."""
    for name, most in MOST.items():
        least = 0 if name == "labels" else 1
        if not least <= require_count(name, plain[name]) <= most:
            raise ValueError(f"{name}={plain[name]} is not possible")
    resolution, decay = plain["resolution"], plain["fmap_decay"]
    if resolution < SMALLEST_RESOLUTION or not is_power_of_two(resolution):
        raise ValueError(f"resolution={resolution} is not possible")
    if not isinstance(decay, int | float) or not math.isfinite(decay):
        raise ValueError("'fmap_decay' is not a number")
    return Architecture(**{**plain, "resampling": Resampling(plain["resampling"])})


def checksum_of(header: dict[str, Any]) -> str:
    """The checksum of what a state.json says."""
    rest = {key: value for key, value in header.items() if key != CHECKSUM}
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def differences(ours: Architecture, theirs: Architecture) -> Iterator[str]:
    """The fields in which two architectures differ, as 'name: theirs -> ours'."""
    for name, value in asdict(ours).items():
        if value != getattr(theirs, name):
            yield f"{name}: {getattr(theirs, name)} -> {value}"
