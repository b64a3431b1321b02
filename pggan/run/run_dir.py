"""The name, lock and configuration of a run directory; imports no torch."""

import os
import re
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pggan.checkpoints.read import CONFIG_FILE, NEWEST, checkpoints_of, run_of
from pggan.core.atomic_io import atomic_write, make_directory, try_lock
from pggan.core.errors import UserError
from pggan.core.text import command_line


def choose_run_dir(run_dir: str | None, name: str) -> Path:
    """Return `run_dir` as a path, or outputs/<name>/<date>_<time> if `run_dir` is None."""
    if run_dir is not None:
        path, remedy = Path(run_dir), "Choose another name."
        if re.search(r"[\0-\x1f\x7f\ud800-\udfff]", run_dir):  # surrogates stand for bytes that are not UTF-8
            raise UserError(f"run_dir={run_dir!a} has control characters, or is not valid UTF-8.", remedy)
        if path == Path(NEWEST):
            raise UserError("run_dir=newest does not work, because run=newest is the newest run of all.", remedy)
        if run_of(path) != path:
            raise UserError(f"run_dir={path} is a checkpoint.", f"To resume its run, set run_dir={run_of(path)}.")
        if path.exists() and not path.is_dir():
            raise UserError(f"run_dir={path} is a file.", "Set run_dir= to a new directory or an existing run.")
        return path
    return Path("outputs") / name / time.strftime("%Y-%m-%d_%H-%M-%S")


def beside(run_dir: Path) -> Path:
    """Return a path for a run with grow=run_dir, such as photos-grown-2: unused, or a folder with only recipe.yaml."""
    run_dir = run_of(run_dir)
    stem = re.sub(r"-grown(-\d+)?$", "", run_dir.absolute().name)
    paths = (run_dir.parent / f"{stem}-grown{'' if number == 1 else -number}" for number in count(1))
    return next(path for path in paths if not path.exists() or {*path.glob("*")} == {path / "recipe.yaml"})


def next_start(run_dir: Path) -> str:
    """Return a hint for the user: how to resume the run or, without a checkpoint, how to start the run again."""
    if not (found := checkpoints_of(run_dir)):
        return "There is no checkpoint yet. The same command starts the run from the beginning."
    return f"To resume from {int(found[-1].name):,} images: {command_line('train', run_dir=run_dir)}"


def write_config(path: Path, description: dict[str, Any]) -> None:
    """Write `description` as config.yaml into the run directory `path`."""
    with atomic_write(path / CONFIG_FILE) as temporary:
        temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(description)), "utf-8")


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[None]:
    """Create the run directory, if it is missing, and lock it inside the `with` block.

    Raises UserError if another process holds the lock, or if the directory can't be written.
    """
    path = run_dir / ".lock"
    try:
        samples = make_directory(run_dir / "samples")
        made = [*make_directory(run_dir / "checkpoints"), *samples]
        file = path.open("a+", encoding="utf-8")
    except OSError as error:
        remedy = "Choose another run_dir=, or get write permission for this directory."
        raise UserError(f"run_dir={run_dir} can't be written: {error.strerror}.", remedy) from error
    with file:
        # If another process has just deleted the lock file, locking it protects nothing, so this process stops.
        if not try_lock(file.fileno()) or os.fstat(file.fileno()).st_nlink == 0:
            remedy = "Wait until the other process ends, stop it with Ctrl-C or `kill`, or choose another run_dir=."
            file.seek(0)
            holder = file.read() or "another process"
            raise UserError(f"run_dir={run_dir} is in use by {holder}.", remedy)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}, started {time.strftime('%Y-%m-%d %H:%M:%S')}")
        file.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # an error of the clean-up must not hide an error inside the `with` block
                path.unlink()  # deletes the lock file before unlocking, so that the next process sees the deletion
            with suppress(OSError):
                for directory in made:
                    directory.rmdir()
