"""Checkpoints read: every file is verified before it is trusted.

checkpoints/<images>/   weights.safetensors: generator/…, discriminator/…, generator_ema/…
                        state.safetensors: optimizer_g/…, optimizer_d/…, grad_scaler/… and what some runs have besides
                        state.json, with the checksum of each file

Up to version 4 there was a file for each of these components.  Torch is imported where tensors are loaded.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pggan.checkpoints.generator_file import STATE_FILE, WEIGHTS_FILE, architecture_in, stored_tensors
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import file_sha256, parse_json
from pggan.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from pggan.optim.state import State, StateDicts

VERSIONS = (4, 5)  # that are read; the last one is written
STATE_TENSORS_FILE = "state.safetensors"
CHECKSUM = "sha256"  # of everything else in state.json
NETWORKS = ("generator", "discriminator", "generator_ema")
COMPONENTS = (*NETWORKS, "optimizer_g", "optimizer_d", "grad_scaler")
NEWEST, BEST = "newest", "best"  # as checkpoint=; the second one marks a checkpoint in state.json
FILE_NAME = r"[a-z_]+\.safetensors"  # inside of the checkpoint's directory


class CorruptCheckpoint(Exception):
    """A checkpoint that can't be trusted: a file is missing, cut short, changed or not what it should be."""


@dataclass(frozen=True)
class Checkpoint:
    """One directory under `checkpoints/`, its JSON read and its files verified."""

    directory: Path
    header: dict[str, Any]

    @property
    def images(self) -> int:
        """Images shown."""
        return int(self.header["images"])

    @property
    def architecture(self) -> Architecture:
        """The architecture of the networks."""
        return Architecture.from_plain(self.header["architecture"])

    def load(self, component: str) -> "dict[str, Tensor]":
        """The tensors of one component, in host memory; none where the checkpoint has no such component."""
        alone, prefix = f"{component}.safetensors", f"{component}/"
        if alone in self.header["files"]:
            file, prefix = alone, ""
        else:
            file = WEIGHTS_FILE if component in NETWORKS else STATE_TENSORS_FILE
        if file not in self.header["files"]:
            return {}
        with safe_open(self.directory / file, "pt") as opened:
            names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118 - not a dictionary
            return {name.removeprefix(prefix): opened.get_tensor(name) for name in names}

    def restore(self, state: "State") -> None:
        """Put the saved state into `state`, of the same architecture; raises UserError when the files don't fit."""
        from pggan.optim.state import AUGMENTATION

        try:
            state_dicts: StateDicts = {component: self.load(component) for component in (*COMPONENTS, AUGMENTATION)}
            state.load_state_dict(state_dicts)
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
            remedy = f"Remove {self.directory} to resume from the checkpoint before."
            raise UserError(f"{self.directory} does not fit: {error}.", remedy) from error
        state.images, state.phase_index = self.images, int(self.header["phase_index"])


def open_checkpoint(directory: Path) -> Checkpoint:
    """Read and verify a checkpoint directory; raises CorruptCheckpoint, or UserError for another version's."""
    try:
        header = read_header(directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint(f"{directory / STATE_FILE}: {error}") from error
    for name, checksum in header["files"].items():
        try:
            if not (directory / name).is_file():
                raise ValueError("it is missing")
            stored_tensors(directory / name)
            if file_sha256(directory / name) != checksum:
                raise ValueError("it has changed: its checksum is another one")
        except (OSError, SafetensorError, ValueError) as error:
            raise CorruptCheckpoint(f"{directory / name}: {error}") from error
    return Checkpoint(directory, header)


def read_header(directory: Path) -> dict[str, Any]:
    """The content of a checkpoint's state.json; raises UserError when another version wrote it.

    Raises OSError, ValueError, KeyError or TypeError unless it is valid.
    """
    header = parse_json((directory / STATE_FILE).read_bytes())
    if (version := header["version"]) not in VERSIONS:
        problem = f"{directory} has checkpoint version {version}; this program reads version {VERSIONS[-1]}."
        raise UserError(problem, "Use the pggan that wrote it.")
    if header[CHECKSUM] != checksum_of(header):
        raise ValueError("its content has changed: the checksum is another one")
    architecture_in(header)
    before = {f"{component}.safetensors" for component in COMPONENTS}
    wanted = {WEIGHTS_FILE, STATE_TENSORS_FILE} if version == VERSIONS[-1] else before
    if not wanted <= {*header["files"]} or not all(re.fullmatch(FILE_NAME, name) for name in header["files"]):
        raise ValueError("it does not list the files of a checkpoint")
    return header


def write_header(directory: Path, header: dict[str, Any]) -> None:
    """Write the state.json of a checkpoint: `header` and its checksum."""
    (directory / STATE_FILE).write_text(json.dumps({**header, CHECKSUM: checksum_of(header)}, indent=1))


def checksum_of(header: dict[str, Any]) -> str:
    """The checksum of what a state.json says."""
    rest = {key: value for key, value in header.items() if key != CHECKSUM}
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def mark_of(directory: Path, name: str) -> Any:
    """The value of `name`, such as BEST, in a checkpoint's state.json, valid or not; None if there is none."""
    try:
        return parse_json((directory / STATE_FILE).read_bytes()).get(name)
    except (OSError, ValueError):
        return None


def checkpoints_of(run_dir: Path) -> list[Path]:
    """The checkpoint directories of a run, valid or not, the oldest first."""
    found = (run_dir / "checkpoints").glob("[0-9]*")
    return sorted(path for path in found if path.name.isdecimal() and path.is_dir() and not path.is_symlink())


def best_of(directories: Sequence[Path]) -> Path | None:
    """The best of the checkpoint directories of a run, the oldest first; None if none of them was evaluated.

    A checkpoint is marked when it is better than all before it, so the best is the newest one with a mark.
    """
    return next((directory for directory in reversed(directories) if mark_of(directory, BEST)), None)


def choose_checkpoint(run: str, choice: str | int) -> str:
    """The place of a generator: `run` itself (NEWEST), its best checkpoint (BEST), or the one at `choice` images.

    Raises UserError where `run` has no such checkpoint.
    """
    if choice == NEWEST:
        return run
    found = checkpoints_of(Path(run))
    chosen = best_of(found) if choice == BEST else next((one for one in found if int(one.name) == choice), None)
    if chosen is None:
        there = ", ".join(str(int(one.name)) for one in found) or "none, as it is no run"
        best = "Evaluations mark the best: the first of evaluation.metrics= says by which number."
        raise UserError(f"run={run} has no checkpoint={choice}.", f"Its checkpoints: {there}. {best}")
    return str(chosen)


def has_checkpoints(path: Path) -> bool:
    """Whether `path` is a checkpoint, or a run that has some, valid or not."""
    return (path / STATE_FILE).is_file() or bool(checkpoints_of(path))


def newest_checkpoint(path: Path) -> tuple[Checkpoint | None, list[str]]:
    """The checkpoint at `path`, or the newest valid one of the run there, and what is wrong with it or newer ones."""
    corrupt: list[str] = []
    for directory in [path] if (path / STATE_FILE).is_file() else reversed(checkpoints_of(path)):
        try:
            return open_checkpoint(directory), corrupt
        except CorruptCheckpoint as problem:
            corrupt.append(str(problem))
    return None, corrupt


def resolve_checkpoint(path: Path, key: str) -> tuple[Checkpoint, list[str]]:
    """The checkpoint at `path`, or the newest valid one of the run there, with a line to log per newer, corrupt one.

    Raises UserError, naming `key`, when there is none.
    """
    checkpoint, corrupt = newest_checkpoint(path)
    if checkpoint is not None:
        return checkpoint, [f"Passed over a corrupt checkpoint: {problem}" for problem in corrupt]
    if corrupt:
        remedy = "Put back an undamaged copy, give another checkpoint, or start anew with another run_dir=."
        raise UserError(f"{key}={path} has no valid checkpoint: {'; '.join(corrupt)}.", remedy)
    where = "a run directory after its first checkpoint.every_images or stop, or one of its checkpoints/<images>"
    raise UserError(f"{key}={path} has no checkpoint.", f"Give {where}.")
