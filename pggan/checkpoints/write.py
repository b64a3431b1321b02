"""Write checkpoints atomically, in a background thread, while training continues."""

import json
import os
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from threading import Thread
from typing import Any, Self

import torch
from torch import Tensor

from pggan.checkpoints import generator_file as generators
from pggan.checkpoints import read
from pggan.checkpoints.generator_file import save_tensors
from pggan.core.atomic_io import atomic_directory, atomic_write, clean_partials, file_sha256, remove_directory
from pggan.core.devices import synchronize
from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.optim.state import State, StateDicts, state_sha256


class NonFiniteError(Exception):
    """The training state or gradients have NaN or infinite numbers, so training can't go on from the current state."""

    def __init__(self, what: str, images: int | None = None) -> None:
        super().__init__(what)
        self.images = images  # images shown when the snapshot was taken; None without a snapshot


@dataclass(frozen=True)
class Snapshot:
    """A copy of the training state in host memory; `header` becomes the checkpoint's state.json."""

    state_dicts: StateDicts
    header: dict[str, Any]


def take_snapshot(state: State, phase: Phase, metadata: dict[str, Any], extra_state: StateDicts) -> Snapshot:
    """Copy `state` and `extra_state` to host memory.  The header gets `metadata` and the `phase` of the last step."""

    def host_copy(tensor: Tensor) -> Tensor:
        copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
        return copy.copy_(tensor.detach(), non_blocking=tensor.is_cuda)

    state_dicts = {
        component: {name: host_copy(tensor) for name, tensor in tensors.items()}
        for component, tensors in (state.state_dict() | extra_state).items()
    }
    synchronize(state.g_ema.weights[0].device)  # waits once for all copies
    progress = {"images": state.images, "phase_index": state.phase_index, "phase": phase.name}
    stage = {"resolution": phase.resolution, "alpha": phase.alpha, "architecture": state.g_ema.architecture.to_plain()}
    return Snapshot(state_dicts, metadata | progress | stage)


def write_checkpoint(run_dir: Path, snapshot: Snapshot) -> None:
    """Write the checkpoint and the generator file of `snapshot`; raises NonFiniteError or OSError.

    The generator file is replaced first.  After a kill, this file may be newer than the newest checkpoint, never older.
    """
    state_dicts, header = snapshot.state_dicts, snapshot.header
    images = header["images"]
    require_finite(state_dicts, images)
    kept = {key: header[key] for key in generators.ENTRIES if key in header}
    about = {generators.HEADER_KEY: json.dumps({"version": generators.VERSION, **kept})}
    weights = {component: state_dicts[component] for component in read.NETWORKS}
    rest = {component: tensors for component, tensors in state_dicts.items() if component not in read.NETWORKS}
    with atomic_directory(run_dir / "checkpoints" / f"{images:09d}") as directory:
        # A kill during `save_tensors` leaves a .tmp* file.  The next start deletes such files only in `directory`.
        save_tensors(state_dicts["generator_ema"], directory / generators.GENERATOR_FILE, about)
        with atomic_write(run_dir / generators.GENERATOR_FILE) as temporary:
            os.replace(directory / generators.GENERATOR_FILE, temporary)
        for file, parts in ((generators.WEIGHTS_FILE, weights), (read.STATE_TENSORS_FILE, rest)):
            named = {f"{component}/{name}": tensor for component in parts for name, tensor in parts[component].items()}
            save_tensors(named, directory / file, about)
        digest = state_sha256(state_dicts, images, header["phase_index"])
        files = {file.name: file_sha256(file) for file in sorted(directory.iterdir())}
        read.write_header(directory, header | {"version": read.VERSIONS[-1], "state_sha256": digest, "files": files})


def require_finite(state_dicts: StateDicts, images: int | None = None) -> None:
    """Raise NonFiniteError if a tensor in `state_dicts` has NaN or infinite numbers."""
    for component, tensors in state_dicts.items():
        for name, tensor in tensors.items():
            if not bool(torch.isfinite(tensor).all()):
                raise NonFiniteError(f"{component}/{name}", images)


def prune(run_dir: Path, newest: int, keep: int) -> None:
    """Remove checkpoints with more than `newest` images shown.  Of the others, keep the best and the last `keep`."""
    found = read.checkpoints_of(run_dir)
    # A run that went back to an earlier checkpoint has abandoned the checkpoints with more than `newest` images shown.
    ahead = [directory for directory in found if int(directory.name) > newest]
    valid = [directory for directory in found if directory not in ahead]
    best = read.best_of(valid)
    for directory in (*ahead, *valid[:-keep]):
        if directory != best:
            remove_directory(directory)
    clean_partials(run_dir / "checkpoints")


class CheckpointWriter:
    """Writes snapshots in a background thread; the next call of `save` or `wait` raises the thread's error."""

    def __init__(self, run_dir: Path, keep: int, every_images: int, every_minutes: float | None) -> None:
        self.run_dir, self.keep, self.every_images = run_dir, keep, every_images
        self.every_seconds = inf if every_minutes is None else 60 * every_minutes
        self._begun = time.monotonic()  # when the newest write began
        self._thread: Thread | None = None
        self._problem: Exception | None = None  # the error of the background thread, which `wait` raises

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Wait for the write, except after Ctrl-C; raises the write's error if the `with` block raised none."""
        if kind is None or issubclass(kind, Exception):
            with nullcontext() if kind is None else suppress(Exception):
                self.wait()

    def save(self, snapshot: Snapshot) -> None:
        """Wait for the previous write, then write `snapshot` in the background."""
        self.wait()
        self._begun = time.monotonic()
        # A daemon thread lets a second Ctrl-C end the process at once; the next start removes half-written files.
        self._thread = Thread(target=self._write, args=(snapshot,), name="checkpoint", daemon=True)
        self._thread.start()

    @property
    def is_late(self) -> bool:
        """Whether `every_minutes` minutes have passed since the last write began."""
        return time.monotonic() - self._begun >= self.every_seconds

    @property
    def is_writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def wait(self) -> None:
        """Wait until the snapshot is on the disk; raises the error with which the background thread failed."""
        if self._thread is not None:
            self._thread.join()  # without `join`, the thread may free tensors while Python exits, and thus abort Python
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _write(self, snapshot: Snapshot) -> None:
        try:
            write_checkpoint(self.run_dir, snapshot)
            prune(self.run_dir, snapshot.header["images"], self.keep)
        except OSError as error:
            self._problem = refused_by_disk(self.run_dir, error)
        except Exception as error:
            self._problem = error


def refused_by_disk(run_dir: Path, error: OSError) -> UserError:
    """Return the UserError for `error`, which a write to `run_dir` has raised."""
    return UserError(
        f"{run_dir} can no longer be written: {error.strerror or error}.",
        "The last checkpoint is valid. Free disk space or get write permission, then resume the run with run_dir=.",
    )
