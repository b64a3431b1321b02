"""Checkpoints read: every file is verified before it is trusted, and every size is checked before it is believed.

checkpoints/<images>/   generator, discriminator, generator_ema, optimizer_g, optimizer_d, grad_scaler .safetensors
                        augmentation .safetensors, where p is adapted; compression .safetensors of gradients=dgc
                        state.json, with the checksum of each file

Torch is imported where tensors are loaded or compared with networks, and not before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError

from pggan.checkpoints.header import (
    COMPONENTS,
    GENERATOR_FILE,
    STATE_FILE,
    architecture_from,
    mark_of,
    read_header,
    stored_tensors,
)
from pggan.checkpoints.pretrained import path_of_run
from pggan.config.parse import BEST, NEWEST
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import file_sha256, is_plain
from pggan.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

    from pggan.optim.state import State

NETWORK_FILES = [f"{component}.safetensors" for component in ("generator", "generator_ema", "discriminator")]


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
        return architecture_from(self.header["architecture"])

    def load(self, component: str) -> "dict[str, Tensor]":
        """The tensors of one component, in host memory."""
        from safetensors.torch import load_file

        return load_file(self.directory / f"{component}.safetensors")

    def restore(self, state: "State") -> None:
        """Put the saved state into `state`, of the same architecture; raises UserError when the files don't fit."""
        from pggan.optim.state import AUGMENTATION

        place, state_dicts = self.directory, {}
        try:
            more = [AUGMENTATION] if f"{AUGMENTATION}.safetensors" in self.header["files"] else []
            for component in [*COMPONENTS, *more]:
                place = self.directory / f"{component}.safetensors"
                state_dicts[component] = self.load(component)
            place = self.directory
            state.load_state_dict(state_dicts)
        except (OSError, KeyError, ValueError, RuntimeError, SafetensorError) as error:
            remedy = f"Remove {self.directory} to resume from the checkpoint before."
            raise UserError(f"{place} does not fit: {error}.", remedy) from error
        state.images, state.phase_index = self.images, int(self.header["phase_index"])


def open_checkpoint(directory: Path, *, light: bool = False) -> Checkpoint:
    """Read and verify a checkpoint directory.

    Args: light: compare checksums only, without torch, for one whose tensors are not going to be loaded.
    Raises CorruptCheckpoint, or UserError when another version wrote it.
    """
    try:
        checkpoint = Checkpoint(directory, read_header(directory))
    except (OSError, ValueError, KeyError, TypeError, OverflowError) as error:
        raise CorruptCheckpoint(f"{directory / STATE_FILE}: {error}") from error
    if light:
        require_fit: Callable[[Path], None] = _require_tensors
    else:
        from pggan.checkpoints.shapes import fit_for

        require_fit = fit_for(checkpoint.architecture)
    _check_files(directory, checkpoint.header["files"], require_fit)
    return checkpoint


def _require_tensors(path: Path) -> None:
    """Raise SafetensorError unless the file of a network holds tensors."""
    if path.name in NETWORK_FILES:
        stored_tensors(path)


def _check_files(directory: Path, files: dict[str, str], require_fit: Callable[[Path], None]) -> None:
    """Raise CorruptCheckpoint unless `files` are there, possible, as `require_fit` says, and unchanged."""
    for name in files:  # cheap checks of all files come first: checksums of large ones take a while
        path = directory / name
        try:
            if not is_plain(path):
                raise ValueError("it is missing, or not a plain file")
            require_fit(path)
        except (OSError, SafetensorError, ValueError) as error:
            raise CorruptCheckpoint(f"{path}: {error}") from error
    for name, checksum in files.items():
        if file_sha256(directory / name) != checksum:
            raise CorruptCheckpoint(f"{directory / name} has changed: its checksum is another one")


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is the directory of one checkpoint, valid or not, rather than a run."""
    return (path / STATE_FILE).is_file()


def checkpoints_of(run_dir: Path) -> list[Path]:
    """The checkpoint directories of a run, valid or not, the oldest first."""
    found = (run_dir / "checkpoints").glob("[0-9]*")
    return sorted(path for path in found if path.name.isdecimal() and path.is_dir() and not path.is_symlink())


def best_of(directories: Sequence[Path]) -> Path | None:
    """The best of the checkpoint directories of a run, the oldest first; None if none of them was evaluated.

    A checkpoint is marked when it is better than all before it, so the best is the newest one with a mark.
    """
    return next((directory for directory in reversed(directories) if mark_of(directory, BEST)), None)


def _without_best(directories: Sequence[Path]) -> tuple[str, str]:
    """Why none of the checkpoint directories of a run is its best, as the rest of a sentence, and a remedy."""
    config = mark_of(directories[-1], "config") if directories else None
    evaluation = config.get("evaluation") if isinstance(config, dict) else None
    if isinstance(evaluation, dict) and not (evaluation.get("best") and evaluation.get("metrics")):
        remedy = "Training keeps the best with evaluation.best and evaluation.metrics of swd, kid or fid."
        return ": it was trained without evaluation.best or evaluation.metrics", f" {remedy}"
    remedy = "A larger evaluation.max_share, a lower evaluation.count or evaluation.interval_images makes room, unless "
    remedy += "the data has too few images (train.log)."
    return ": so far, no evaluation has had a number that evaluation.best goes by", f" {remedy}"


def choose_checkpoint(run: str, choice: str | int) -> str:
    """The place of a generator: `run` itself (NEWEST), its best checkpoint (BEST), or that of `choice` images.

    Raises UserError where `run` has no such checkpoint.
    """
    if choice == NEWEST:
        return run
    path = Path(run)
    if not path.is_dir() or is_checkpoint(path):
        problem = f"run={run} is one generator, and checkpoint={choice} chooses among those of a run."
        raise UserError(problem, "Give the run directory, or leave out checkpoint=.")
    found = checkpoints_of(path)
    chosen = best_of(found) if choice == BEST else next((one for one in found if int(one.name) == choice), None)
    if chosen is None:
        there = ", ".join(str(int(one.name)) for one in found) or "none"
        why, remedy = _without_best(found) if choice == BEST else ("", "")
        raise UserError(f"run={run} has no checkpoint={choice}{why}.", f"Its checkpoints: {there}.{remedy}")
    return str(chosen)


def generator_path(run: str, key: str = "run") -> Path:
    """The file of the averaged generator of the run, checkpoint, file or pretrained:NAME that `key` gives.

    Raises UserError when there is none.
    """
    path = path_of_run(run, key)
    if path.is_dir():  # a checkpoint, whose own generator.safetensors is not the averaged one, or a run
        path = path / ("generator_ema.safetensors" if is_checkpoint(path) else GENERATOR_FILE)
    if not path.exists() or path.is_dir():
        remedy = "Give a run directory after its first checkpoint, a checkpoints/<images> or a generator.safetensors."
        raise UserError(f"{key}={run} has no generator.", remedy)
    return path


def has_checkpoints(path: Path) -> bool:
    """Whether `path` is a checkpoint, or a run that has some, valid or not."""
    return is_checkpoint(path) or bool(checkpoints_of(path))


def require_checkpoints(path: Path, key: str) -> None:
    """Raise UserError, naming `key`, unless `path` is a checkpoint or a run that has some, valid or not."""
    if not has_checkpoints(path):
        where = "a run directory after its first checkpoint.every_images or stop, or one of its checkpoints/<images>"
        raise UserError(f"{key}={path} has no checkpoint.", f"Give {where}.")


def checkpoints_of_run(run: str) -> list[Path]:
    """The checkpoint directories of a run, valid or not, the oldest first; raises UserError where there are none."""
    if found := checkpoints_of(Path(run)):
        return found
    raise UserError(
        f"run={run} has no checkpoints.",
        "Give the directory of a run after its first checkpoint: checkpoint=all and milestones=true take all of them.",
    )


def newest_checkpoint(run_dir: Path, *, light: bool = False) -> tuple[Checkpoint | None, list[str]]:
    """The newest valid checkpoint of a run, and what is wrong with newer ones; `light` as of `open_checkpoint`."""
    corrupt: list[str] = []
    for directory in reversed(checkpoints_of(run_dir)):
        try:
            return open_checkpoint(directory, light=light), corrupt
        except CorruptCheckpoint as problem:
            corrupt.append(str(problem))
    return None, corrupt


def resolve_checkpoint(path: Path, key: str, *, light: bool = False) -> tuple[Checkpoint, list[str]]:
    """The checkpoint at `path`, or the newest valid one of the run there, with a line to log per newer, corrupt one.

    Args: light: as of `open_checkpoint`.
    Raises UserError, naming `key`, when there is none.
    """
    require_checkpoints(path, key)
    if is_checkpoint(path):
        try:
            return open_checkpoint(path, light=light), []
        except CorruptCheckpoint as problem:
            remedy = "Choose another one of that run."
            raise UserError(f"{key}={path} is not a valid checkpoint: {problem}.", remedy) from problem
    checkpoint, corrupt = newest_checkpoint(path, light=light)
    if checkpoint is not None:
        return checkpoint, [f"Passed over a corrupt checkpoint: {problem}" for problem in corrupt]
    remedy = "Put back an undamaged copy, or start anew with another run_dir=."
    raise UserError(f"{key}={path} has no valid checkpoint: {'; '.join(corrupt)}.", remedy)
