"""The directory of one run: where it is, its log, and the configuration in it."""

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pggan.config import TrainConfig
from pggan.core.atomic_io import atomic_write, make_directory
from pggan.core.errors import UserError


def choose_run_dir(config: TrainConfig) -> Path:
    """The directory that `config` names, or a new one under outputs/<name>/; nothing is created yet."""
    if config.run_dir is not None:
        path = Path(config.run_dir)
        if path.exists() and not path.is_dir():
            raise UserError(f"run_dir={path} is a file.", "Name a directory, new or of an earlier run.")
        return path
    stem = Path("outputs") / config.name / time.strftime("%Y-%m-%d_%H-%M-%S")
    names = (stem if number == 1 else stem.with_name(f"{stem.name}_{number}") for number in range(1, 1000))
    return next(name for name in names if not name.exists())


def create_run_dir(path: Path) -> None:
    """Create the directories of a run; raises UserError when that can't be done."""
    try:
        for directory in (path / "samples", path / "checkpoints"):
            make_directory(directory)
    except OSError as error:
        raise UserError(f"run_dir={path} can't be written: {error.strerror}.", "Choose another run_dir=.") from error


def write_config(path: Path, description: dict[str, Any]) -> None:
    """Write config.yaml into the run directory `path`."""
    with atomic_write(path / "config.yaml") as temporary:
        temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(description)))


def append_log(run_dir: Path, text: str) -> None:
    """Append a line to train.log, with the time."""
    with (run_dir / "train.log").open("a") as file:
        file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")


def rank_logger(run_dir: Path) -> Callable[[str], None]:
    """A logger for what rank 0 may no longer be able to report: to this rank's own console, and train.log."""

    def log(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        with suppress(OSError):  # on another machine, it may not be there
            append_log(run_dir, text)

    return log
