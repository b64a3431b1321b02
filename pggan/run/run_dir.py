"""The directory of a run: its lock, log, configuration and numbers.  Imported without torch."""

import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
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
    stem = Path("outputs") / name / time.strftime("%Y-%m-%d_%H-%M-%S")
    names = (stem if number == 1 else stem.with_name(f"{stem.name}_{number}") for number in range(1, 1000))
    return next(name for name in names if not name.exists())


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


def log_on_rank(run_dir: Path, text: str) -> None:
    """Log what rank 0 may no longer be able to report: to this rank's own console, and train.log."""
    print(text, file=sys.stderr, flush=True)
    with suppress(OSError):  # on another machine, it may not be there
        append_log(run_dir, text)


class MetricsFile:
    """metrics.jsonl: the scalars of each tick as one JSON object per line, and the hours of training."""

    def __init__(self, path: Path, images: int) -> None:
        """Continue from `images`: lines beyond it are dropped, and hours count on from the last line that stays."""
        self.path, kept = path, [""]
        if path.is_file():
            kept += [line for line in path.read_text().splitlines() if _images_of(line) <= images]
            with atomic_write(path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in kept[1:]))
        hours = json.loads(kept[-1]).get("hours", 0.0) if kept[-1] else 0.0
        self._began = time.monotonic() - 3600 * hours

    @property
    def hours(self) -> float:
        """Hours of training so far, without the steps that a resumed run takes again."""
        return (time.monotonic() - self._began) / 3600

    def append(self, values: Mapping[str, Any]) -> None:
        """Append a line; a number that is not finite is written as null, because JSON has no NaN."""
        finite = {key: None if isinstance(of, float) and not math.isfinite(of) else of for key, of in values.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(finite, allow_nan=False) + "\n")


def _images_of(line: str) -> int:
    try:
        return int(json.loads(line)["images"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a kill or a full disk
        return sys.maxsize


@contextmanager
def lock_run_dir(run_dir: Path) -> Iterator[None]:
    """Create the directories of a run, if needed, and keep every other process out while the block runs.

    The system frees the lock however this process ends, so a killed run leaves nothing to clean up.
    Directories created here are removed again if the block fails before there is anything in them.
    Raises UserError, naming process, host and start, when another run has the directory; or when it can't be written.
    """
    try:
        samples = make_directory(run_dir / "samples")
        made = [*make_directory(run_dir / "checkpoints"), *samples]
        descriptor = _lock(run_dir)
    except OSError as error:
        remedy = "Choose another run_dir=, or get permission there."
        raise UserError(f"run_dir={run_dir} can't be written: {error.strerror}.", remedy) from error
    try:
        yield
    finally:
        with suppress(OSError):  # a disk that has become read-only must not hide why the block failed
            (run_dir / LOCK_FILE).unlink()  # while the lock is held: whoever has the file open sees that it is gone
        os.close(descriptor)
        with suppress(OSError):
            for directory in made:
                directory.rmdir()


def _lock(run_dir: Path) -> int:
    """The descriptor of an open file that holds the lock of `run_dir`."""
    path = run_dir / LOCK_FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            if not try_lock(descriptor):
                remedy = "Wait until it ends, stop it with Ctrl-C or `kill`, or choose another run_dir=."
                raise UserError(f"run_dir={run_dir} is in use by {_holder(os.read(descriptor, 4096))}.", remedy)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    break
        except (OSError, UserError):
            os.close(descriptor)
            raise
        os.close(descriptor)  # the run before removed its file between our opening and locking it
    about = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
    os.ftruncate(descriptor, 0)
    os.write(descriptor, json.dumps(about).encode())
    return descriptor


def _holder(content: bytes) -> str:
    """The process that has written `content` into the lock file, in words."""
    try:
        about = json.loads(content)
        return f"process {about['pid']} on {about['host']}, started {about['started']}"
    except (ValueError, KeyError, TypeError):  # it has locked the file, and not written into it yet
        return "another process that is just starting"
