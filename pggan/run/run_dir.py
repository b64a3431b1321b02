"""One run before there is a trainer: what it is made of, its directory, the log and the configuration in it."""

import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pggan.checkpoints.read import Checkpoint, checkpoints_of
from pggan.config import TrainConfig
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.data.pyramid import ImagePyramid


@dataclass(frozen=True)
class RunContext:
    """The parts of a run: its configuration, directory, schedule, data, architecture, and where it starts."""

    config: TrainConfig
    description: dict[str, Any]  # of the configuration and the versions, as it is saved
    run_dir: Path
    schedule: Schedule
    pyramid: ImagePyramid
    architecture: Architecture
    checkpoint: Checkpoint | None  # to resume from, on rank 0
    notes: list[str]  # to log
    finding_seconds: float  # until the images were there, prepared if need be


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
