"""The numbers, lines and pictures of a run, written to the console, train.log, metrics.jsonl and TensorBoard.

Nothing here waits for the device between ticks.
"""

import json
import math
import re
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import peak_memory
from pggan.core.schedule import Course, Phase
from pggan.run.console import TrainingConsole
from pggan.run.eta import Eta
from pggan.run.run_dir import append_log
from pggan.sampling.images import Pixels, save_png

# The keys that people compare runs by; the others are in the text of the configuration.
COMPARED = ("seed", "precision", "elastic", "loss", "model", "schedule", "optimizer", "ema", "augmentation")
GROWTH = {"growth: each bend is the border of two phases": ["^schedule/growth$"]}
# Categories of Custom Scalars, their charts, and patterns of the tags in each.
LAYOUT: dict[str, dict[str, list[str]]] = {
    "losses": {
        "losses": [r"^[DG]/loss$"],
        "terms of D": [r"^D/(wasserstein|loss_reals|loss_fakes|relativistic|class_loss_.*)$"],
    },
    "scores": {"scores: reals against fakes": [r"^scores/.*"]},
    "augmentation": {"p of ADA": ["^augment/p$"], "mean sign of D": ["^augment/sign$"]},
    "penalties": {"penalties": [r"^D/(gradient_penalty|r1|r2|drift)$"]},
    "quality": {"metrics and their floors": [r"^metrics/.*"]},
    "health": {
        "gradient norms": [r"^[DG]/gradient_norm(_max)?$"],
        "alarms, skipped updates": [r"^health/alarms$", r"^alarms/.*", r"^[DG]/skipped$"],
        "overfitting, diversity": ["^health/reals_sign$", "^health/diversity$"],
        "loss scale": [r"^[DG]/loss_scale$"],
    },
    "speed": {
        "images per second": ["^speed/images_per_second$"],
        "memory, bytes": ["^speed/memory_bytes$"],
        "time left, seconds": ["^speed/eta_seconds$"],
    },
    "schedule": {
        "resolution": ["^schedule/resolution$"],
        "alpha": ["^schedule/alpha$"],
        "batch": ["^schedule/batch$"],
        "learning rates": ["^schedule/learning_rate_.*"],
    },
}


class NullReporter:
    """The reporter of ranks other than 0: it takes every call of a Reporter and of its parts, and does nothing."""

    def __getattr__(self, name: str) -> Self:
        return self

    def __call__(self, *_: object, **__: object) -> None:
        """Do nothing."""


class Reporter:
    """The one place where a run's scalars, lines and pictures are written; a context."""

    def __init__(self, run_dir: Path, course: Course, eta: Eta, images: int, console: str) -> None:
        """Continue the files of the run from `images`; what was written beyond it is dropped."""
        self.run_dir, self.course, self.eta, self.began_at = run_dir, course, eta, images
        self.console = TrainingConsole(console, course, images)
        self.board = SummaryWriter(str(run_dir), purge_step=images + 1 if images else 0)
        self._metrics = MetricsFile(run_dir / "metrics.jsonl", images)
        self._tick_images, self._tick_time = images, time.monotonic()

    def __enter__(self) -> Self:
        self.console.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.console.__exit__()
        with nullcontext() if kind is None else suppress(Exception):  # a full disk may be why the block failed
            self.board.close()

    def line(self, text: str, *, always: bool = False) -> None:
        """Show a line on the console, a quiet one only if `always`, and keep it in train.log."""
        self.console.line(text, always=always)
        append_log(self.run_dir, text)

    def warn(self, text: str) -> None:
        """Show a warning, which stays visible on a terminal, and keep it in train.log."""
        self.console.warn(text)
        append_log(self.run_dir, text)

    def alarm(self, text: str, images: int) -> None:
        """Show what goes wrong at `images` and what to do, as a warning and in TensorBoard."""
        self.warn(f"Alarm: {text}")
        self.board.add_text("alarms", text, images)

    def describe(self, description: dict[str, Any], hyperparameters: Mapping[str, Any]) -> None:
        """Write the layout of TensorBoard's charts, pages about the run, and the beginning of its row in HParams.

        Args: description: of the configuration; hyperparameters: its values by full keys.
        """
        board, first = self.board, self.began_at and self.began_at + 1
        charts = {
            title: {name: ["Multiline", tags] for name, tags in (GROWTH | parts).items()}
            for title, parts in LAYOUT.items()
        }
        board.add_custom_scalars(charts)
        configuration = OmegaConf.to_yaml(OmegaConf.create(description)).splitlines()
        board.add_text("run/configuration", "\n".join(f"    {line}" for line in configuration), first)
        # No columns are declared, as `add_hparams` would: TensorBoard takes all numbers of all runs.
        compared = {
            key: value
            for key, value in hyperparameters.items()
            if key.split(".")[0] in COMPARED and isinstance(value, bool | int | float | str)
        }
        _, start, self._end_of_row = hparams(compared, {})  # type: ignore[no-untyped-call]
        self.board.file_writer.add_summary(start, first)  # type: ignore[attr-defined]  # its type says None

    def finish(self, images: int) -> None:
        """Mark the row in HParams: the run has come to its end."""
        self.board.file_writer.add_summary(self._end_of_row, images)  # type: ignore[attr-defined]

    def begin_phase(self, phase: Phase, images: int, *, is_new: bool) -> None:
        """Tell that training is at `images`, at the beginning of a phase if `is_new`, or in one that is resumed."""
        self.console.progress(images, phase)
        title = f"Phase {phase.index + 1} of {len(self.course.schedule.phases)}: {phase.name}, batch {phase.batch}"
        self.line(title if is_new else f"{title}, resumed at {images:,} images")
        if is_new:
            # The point of the first image of the phase: a run that resumes from `images` writes it again, once.
            self.board.add_text("phases", title, images + 1)
            self.board.add_scalar("schedule/growth", growth(phase), images + 1)

    def tick(
        self,
        images: int,
        phase: Phase,
        means: dict[str, float],
        scores: Mapping[str, NDArray[np.float32]],
        device: torch.device,
    ) -> None:
        """Write the `means` since the last tick everywhere, and the distribution of the `scores` [N] to TensorBoard."""
        now = time.monotonic()
        seconds_per_image = (now - self._tick_time) / max(images - self._tick_images, 1)
        self._tick_images, self._tick_time = images, now
        self.eta.observe(images, now)
        scalars = means | {
            "schedule/resolution": phase.resolution,
            "schedule/growth": growth(phase),
            "schedule/alpha": phase.alpha,
            "schedule/batch": phase.batch,
            "schedule/learning_rate_g": phase.learning_rate_g,
            "schedule/learning_rate_d": phase.learning_rate_d,
            "speed/images_per_second": 1 / seconds_per_image,
            "speed/memory_bytes": peak_memory(device),
            "speed/eta_seconds": self.eta.seconds_between(images, self.course.schedule.total),
            "speed/hours": self._metrics.hours,
        }
        for name, value in scalars.items():
            self.board.add_scalar(name, value, images)
        for name, values in scores.items():
            if len(finite := values[np.isfinite(values)]):
                self.board.add_histogram(name.replace("scores/", "score_histogram/"), finite, images)
        self.board.flush()
        record = {re.sub("^(schedule|speed|health)/", "", name): value for name, value in scalars.items()}
        self._metrics.append({"images": images, "phase": phase.name, **record})
        self.console.progress(images, phase)
        append_log(self.run_dir, self.console.tick(scalars))

    def picture(self, tag: str, picture: Pixels, path: Path | None, images: int) -> None:
        """Show a picture [H, W, C] in TensorBoard, and write it as the PNG file `path`."""
        if path is not None:
            save_png(picture, path)
        shown = picture if picture.shape[2] in (3, 4) else picture[:, :, :1]
        self.board.add_image(tag, shown, images, dataformats="HWC")


def growth(phase: Phase) -> float:
    """Doublings of 4x4 so far; the doubling of a fade counts by its alpha."""
    return phase.resolution.bit_length() - MIN_RESOLUTION.bit_length() - 1 + phase.alpha


class MetricsFile:
    """metrics.jsonl: the scalars of each tick as one JSON object per line, and the hours of training."""

    def __init__(self, path: Path, images: int) -> None:
        """Continue from `images`: lines beyond it are dropped, and hours count on from the last line that stays."""
        self.path, hours, kept = path, 0.0, ""
        for line in path.read_text().splitlines() if path.is_file() else []:
            with suppress(ValueError, KeyError, TypeError):  # a line cut short by a kill or a full disk
                if (tick := json.loads(line))["images"] <= images:
                    hours, kept = tick.get("hours", 0.0), f"{kept}{line}\n"
        with atomic_write(path) as temporary:
            temporary.write_text(kept)
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
