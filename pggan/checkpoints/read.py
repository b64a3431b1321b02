"""Read checkpoints; every file is verified before it is used.

A checkpoint after N images is the directory checkpoints/N.  Its file weights.safetensors holds G, D and the averaged G.
state.safetensors holds all other tensors, such as optimizer states.  state.json holds the checksums.  Checkpoints of
version 4 have one tensor file for each network, each optimizer and the gradient scaler instead.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pggan.checkpoints.generator_file import GENERATOR_FILE, STATE_FILE, WEIGHTS_FILE, architecture_in, stored_tensors
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import file_sha256, parse_json
from pggan.core.errors import UserError, nearest_path

if TYPE_CHECKING:
    from torch import Tensor

    from pggan.optim.state import State, StateDicts

VERSIONS = (4, 5)  # pggan reads checkpoints of both versions, and writes checkpoints of the last version
STATE_TENSORS_FILE = "state.safetensors"
CHECKSUM = "sha256"  # this entry of state.json holds the checksum of all other entries
NETWORKS = ("generator", "discriminator", "generator_ema")
COMPONENTS = (*NETWORKS, "optimizer_g", "optimizer_d", "grad_scaler")
NEWEST, BEST = "newest", "best"  # values of checkpoint=
CONFIG_FILE = "config.yaml"  # a directory that contains this file is a run directory
OUTPUTS = Path("outputs")  # run directories are in this folder by default
EVENTS = "events.out.tfevents.*"  # TensorBoard reads these files in a run directory
FILE_NAME = r"[a-z_]+\.safetensors"  # allows no slash, because a slash could lead to another directory


class CorruptCheckpoint(Exception):
    """A file of a checkpoint is missing, truncated, changed or invalid."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint; `header` is the content of state.json."""

    directory: Path
    header: dict[str, Any]

    @property
    def images(self) -> int:
        """The number of images shown before this checkpoint was written."""
        return int(self.header["images"])

    @property
    def architecture(self) -> Architecture:
        return Architecture.from_plain(self.header["architecture"])

    def file_of(self, component: str) -> tuple[str, str]:
        """Return the file of `component`, such as optimizer_g, and the prefix of the component's tensor names."""
        if (alone := f"{component}.safetensors") in self.header["files"]:
            return alone, ""
        return (WEIGHTS_FILE if component in NETWORKS else STATE_TENSORS_FILE), f"{component}/"

    def load(self, component: str) -> "dict[str, Tensor]":
        """Load the tensors of `component`, such as optimizer_g, into host memory; {} if the checkpoint has none."""
        file, prefix = self.file_of(component)
        if file not in self.header["files"]:
            return {}
        with safe_open(self.directory / file, "pt") as opened:
            names = [name for name in opened.keys() if name.startswith(prefix)]  # noqa: SIM118 - `opened` is not a dictionary
            return {name.removeprefix(prefix): opened.get_tensor(name) for name in names}

    def restore(self, state: "State") -> None:
        """Load the checkpoint into the training state `state`; raises UserError if the tensors don't fit."""
        from pggan.optim.state import AUGMENTATION

        try:
            state_dicts: StateDicts = {component: self.load(component) for component in (*COMPONENTS, AUGMENTATION)}
            state.load_state_dict(state_dicts)
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
            remedy = f"To resume from the previous checkpoint, remove {self.directory}."
            raise UserError(f"{self.directory} does not fit this run: {error}.", remedy) from error
        state.images, state.phase_index = self.images, int(self.header["phase_index"])


def open_checkpoint(directory: Path) -> Checkpoint:
    """Verify and open a checkpoint; raises CorruptCheckpoint if a file is invalid, UserError for an unknown version."""
    try:
        header = read_header(directory)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorruptCheckpoint(f"{directory / STATE_FILE}: {error}") from error
    for name, checksum in header["files"].items():
        try:
            if not (directory / name).is_file():
                raise ValueError("the file is missing")
            stored_tensors(directory / name)
            if file_sha256(directory / name) != checksum:
                raise ValueError("the file has changed: its checksum differs")
        except (OSError, SafetensorError, ValueError) as error:
            raise CorruptCheckpoint(f"{directory / name}: {error}") from error
    return Checkpoint(directory, header)


def read_header(directory: Path) -> dict[str, Any]:
    """Read and verify state.json; raises UserError for an unknown version, and other errors for an invalid file."""
    header = parse_json((directory / STATE_FILE).read_bytes())
    if (version := header["version"]) not in VERSIONS:
        problem = f"{directory} has checkpoint version {version}; this program reads {VERSIONS[0]} to {VERSIONS[-1]}."
        raise UserError(problem, "Use the version of pggan that wrote the checkpoint.")
    if header[CHECKSUM] != checksum_of(header):
        raise ValueError("the content has changed: its checksum differs")
    architecture_in(header)
    before = {f"{component}.safetensors" for component in COMPONENTS}
    wanted = {WEIGHTS_FILE, STATE_TENSORS_FILE} if version == VERSIONS[-1] else before
    if not wanted <= {*header["files"]} or not all(re.fullmatch(FILE_NAME, name) for name in header["files"]):
        raise ValueError("the entry 'files' lacks a file or has an invalid file name")
    return header


def write_header(directory: Path, header: dict[str, Any]) -> None:
    """Write `header` with its checksum into a checkpoint's state.json."""
    (directory / STATE_FILE).write_text(json.dumps({**header, CHECKSUM: checksum_of(header)}, indent=1), "utf-8")


def checksum_of(header: dict[str, Any]) -> str:
    """Compute the checksum of a state.json: the SHA-256 of all entries but the checksum."""
    rest = {key: value for key, value in header.items() if key != CHECKSUM}
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def mark_of(directory: Path, name: str) -> Any:
    """Read the entry `name` of a checkpoint's state.json; None if it is missing, or if the file fails its checksum."""
    try:
        header = parse_json((directory / STATE_FILE).read_bytes())
        return header.get(name) if header.get(CHECKSUM) == checksum_of(header) else None
    except (OSError, ValueError):
        return None


def newest_run(folder: Path, file: str = GENERATOR_FILE) -> Path:
    """Find the run at or below `folder` whose file `file` is newest; raises UserError if no run has this file."""
    found = (path for path in folder.rglob(file) if (path.parent / CONFIG_FILE).is_file())
    files = {path: path.stat().st_mtime for path in found}
    if not files:
        problem = f"There is no run {'with a checkpoint ' * (file != EVENTS)}in {folder.absolute()}."
        remedy = "Set run= to the run_dir of a training. By default, runs are below outputs/."
        raise UserError(problem, nearest_path(folder) or remedy)
    return max(files, key=files.__getitem__).parent


def checkpoints_of(run_dir: Path) -> list[Path]:
    """List the directories of a run's checkpoints, the oldest first; corrupt checkpoints are included."""
    names = (run_dir / "checkpoints").glob("[0-9]*")
    found = (path for path in names if path.name.isdecimal() and path.is_dir() and not path.is_symlink())
    return sorted(found, key=lambda path: int(path.name))


def run_of(path: Path) -> Path:
    """Return the run directory of a checkpoint such as photos/checkpoints/000000640; return other paths unchanged."""
    return path.parents[1] if path.parent.name == "checkpoints" and path.name.isdecimal() else path


def best_of(directories: Sequence[Path]) -> Path | None:
    """Return the last checkpoint in `directories` (oldest first) that an evaluation marked as the best, or None."""
    return next((directory for directory in reversed(directories) if mark_of(directory, BEST)), None)


def choose_checkpoint(run: str, choice: str | int) -> str:
    """Return the checkpoint's path for `choice` (best or a number of images shown); for newest, return `run` itself."""
    if choice == NEWEST:
        return run
    found = checkpoints_of(Path(run))
    chosen = best_of(found) if choice == BEST else next((one for one in found if int(one.name) == choice), None)
    if chosen is None:
        there = ", ".join(str(int(one.name)) for one in found) or "none, because run= has no checkpoints"
        best = "Evaluations mark the best checkpoint, by the first metric in evaluation.metrics=."
        raise UserError(f"run={run} has no checkpoint={choice}.", f"Its checkpoints: {there}. {best}")
    return str(chosen)


def has_checkpoints(path: Path) -> bool:
    """Whether `path` is a checkpoint, or a run with checkpoints; corrupt checkpoints count, too."""
    return (path / STATE_FILE).is_file() or bool(checkpoints_of(path))


def newest_checkpoint(path: Path) -> tuple[Checkpoint | None, list[str]]:
    """Open a checkpoint, or the newest valid checkpoint of a run; also returns the errors of corrupt checkpoints."""
    corrupt: list[str] = []
    for directory in [path] if (path / STATE_FILE).is_file() else reversed(checkpoints_of(path)):
        try:
            return open_checkpoint(directory), corrupt
        except CorruptCheckpoint as problem:
            corrupt.append(str(problem))
    return None, corrupt


def resolve_checkpoint(path: Path, key: str) -> tuple[Checkpoint, list[str]]:
    """Return the newest valid checkpoint of `path` and warnings for corrupt ones; raises UserError if none is valid."""
    checkpoint, corrupt = newest_checkpoint(path)
    if checkpoint is not None:
        return checkpoint, [f"Passed over a corrupt checkpoint: {problem}" for problem in corrupt]
    if corrupt:
        remedy = "Restore an undamaged checkpoint, give another one, or start a new run with another run_dir=."
        raise UserError(f"{key}={path} has no valid checkpoint: {'; '.join(corrupt)}.", remedy)
    remedy = "Give a run directory with a checkpoint or its checkpoints/NUMBER. init_from= also takes generator files."
    problem = f"{key}={path} {'has no checkpoint' if path.exists() else 'does not exist'}."
    raise UserError(problem, nearest_path(path, has_checkpoints) or remedy)
