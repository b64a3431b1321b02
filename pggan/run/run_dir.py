"""The directory of a run: its name, lock, log and configuration.  Imported without torch."""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pggan.checkpoints.read import checkpoints_of
from pggan.core.atomic_io import atomic_write, make_directory, try_lock
from pggan.core.errors import UserError

LOCK_FILE = ".lock"


def choose_run_dir(run_dir: str | None, name: str) -> Path:
    """The directory `run_dir`, or a new one under outputs/<name>/; nothing is created yet."""
    if run_dir is not None:
        path = Path(run_dir)
        if path.exists() and not path.is_dir():
            raise UserError(f"run_dir={path} is a file.", "Name a directory, new or of an earlier run.")
        return path
    return Path("outputs") / name / time.strftime("%Y-%m-%d_%H-%M-%S")


def next_start(run_dir: Path) -> str:
    """A sentence on what the same command would do with the run as it is on the disk: resume or begin again."""
    found = checkpoints_of(run_dir)
    does = f"resumes from {int(found[-1].name):,} images" if found else "begins again: there is no checkpoint yet"
    return f"The same command with run_dir={run_dir} {does}."


def write_config(path: Path, description: dict[str, Any]) -> None:
    """Write config.yaml into the run directory `path`."""
    with atomic_write(path / "config.yaml") as temporary:
        temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(description)))


def append_log(run_dir: Path, text: str) -> None:
    """Append a line to train.log, with the time."""
    with (run_dir / "train.log").open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[None]:
    """Create the directories of a run, if needed, and keep every other process out while the block runs.

    The system frees the lock however this process ends, so a killed run leaves nothing to clean up.
    Directories created here are removed again if the block fails before there is anything in them.
    Raises UserError, naming process, host and start, when another run has the directory; or when it can't be written.
    """
    path = run_dir / LOCK_FILE
    try:
        samples = make_directory(run_dir / "samples")
        made = [*make_directory(run_dir / "checkpoints"), *samples]
        file = path.open("a+")
    except OSError as error:
        remedy = "Choose another run_dir=, or get permission there."
        raise UserError(f"run_dir={run_dir} can't be written: {error.strerror}.", remedy) from error
    with file:
        # The run before may have removed its file between our opening and locking it.
        if not try_lock(file.fileno()) or os.fstat(file.fileno()).st_nlink == 0:
            remedy = "Wait until it ends, stop it with Ctrl-C or `kill`, or choose another run_dir=."
            file.seek(0)
            holder = file.read() or "another process that is just starting or ending"
            raise UserError(f"run_dir={run_dir} is in use by {holder}.", remedy)
        file.truncate(0)
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        file.write(f"process {os.getpid()} on {socket.gethostname()}, started {started}")
        file.flush()
        try:
            yield
        finally:
            with suppress(OSError):  # a disk that has become read-only must not hide why the block failed
                path.unlink()  # while the lock is held: whoever has the file open sees that it is gone
            with suppress(OSError):
                for directory in made:
                    directory.rmdir()
