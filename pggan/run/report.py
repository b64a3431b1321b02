"""The numbers, lines and pictures of a run, written to the console, train.log, metrics.jsonl and TensorBoard.

Nothing here waits for the device between ticks.
"""

import json
import math
import re
import time
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from pggan.config.values import flatten
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.atomic_io import atomic_write
from pggan.core.schedule import Course, Phase
from pggan.run.console import TrainingConsole
from pggan.run.eta import Eta
from pggan.run.health import Alarms
from pggan.run.run_dir import append_log
from pggan.sampling.images import Pixels, save_png

METRICS_FILE = "metrics.jsonl"  # the scalars of each tick as one JSON object per line
# The keys that people compare runs by; the others are in the text of the configuration.
COMPARED = ("seed", "precision", "elastic", "loss", "model", "schedule", "ema", "augmentation")
GROWTH = {"growth: each bend is the border of two phases": ["^schedule/growth$"]}
# Categories of Custom Scalars, their charts, and patterns of the tags in each.
LAYOUT: dict[str, dict[str, list[str]]] = {
    "losses": {
        "losses": ["^[DG]/loss$"],
        "terms": ["^[DG]/(wasserstein|loss_reals|loss_fakes|relativistic|class_loss_.*)$"],
        "penalties": ["^D/(gradient_penalty|r1|r2|drift)$"],
    },
    "scores": {"scores: reals against fakes": ["^scores/.*"]},
    "quality": {"metrics and their floors": ["^metrics/.*"]},
    "health": {
        "gradient norms": ["^[DG]/gradient_norm(_max)?$"],
        "alarms, skipped updates": ["^health/alarms$", "^alarms/.*", "^[DG]/skipped$"],
        "overfitting, p of ADA": ["^health/reals_sign$", "^augment/.*"],
        "loss scale": ["^[DG]/loss_scale$"],
    },
    "speed": {tag: [f"^speed/{tag}$"] for tag in ("images_per_second", "memory_bytes", "eta_seconds")},
    "schedule": {tag: [f"^schedule/{tag}.*"] for tag in ("resolution", "alpha", "batch", "learning_rate")},
}


class NullReporter:
    """The reporter of ranks other than 0: it takes every call of a Reporter and of its parts, and does nothing."""

    def __getattr__(self, name: str) -> Self:
        return self

    def __call__(self, *_: object, **__: object) -> None:
        """Do nothing."""


class Reporter:
    """The one place where a run's scalars, lines and pictures are written; a context."""

    def __init__(self, run_dir: Path, course: Course, eta: Eta, alarms: Alarms, *, images: int, began: float) -> None:
        """Continue the files of the run from `images`; what was written beyond it is dropped.

        Args: began: when training would have begun if it had never stopped, by the clock of time.monotonic().
        """
        self.run_dir, self.course, self.eta, self.alarms, self.began = run_dir, course, eta, alarms, began
        self.console = TrainingConsole(run_dir, course, images)
        self.board = SummaryWriter(str(run_dir), purge_step=images + 1 if images else 0)
        self._first = images and images + 1  # of what is written now
        self._tick_images, self._tick_time = images, time.monotonic()
        keep_metrics(run_dir / METRICS_FILE, images)

    def __enter__(self) -> Self:
        self.console.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.console.__exit__()
        with nullcontext() if kind is None else suppress(Exception):  # a full disk may be why the block failed
            self.board.close()

    @property
    def hours(self) -> float:
        """Hours of training so far, without the steps that a resumed run takes again."""
        return (time.monotonic() - self.began) / 3600

    def line(self, text: str) -> None:
        """Show a line on the console, and keep it in train.log."""
        self.console.line(text)
        append_log(self.run_dir, text)

    def warn(self, text: str) -> None:
        """Show a warning, which stays visible on a terminal, and keep it in train.log."""
        self.console.warn(text)
        append_log(self.run_dir, text)

    def describe(self, description: dict[str, Any]) -> None:
        """Write TensorBoard's layout of charts, the configuration, and the beginning of the row in HParams."""
        board = self.board
        charts = {
            title: {name: ["Multiline", tags] for name, tags in (GROWTH | parts).items()}
            for title, parts in LAYOUT.items()
        }
        board.add_custom_scalars(charts)
        configuration = OmegaConf.to_yaml(OmegaConf.create(description)).splitlines()
        board.add_text("run/configuration", "\n".join(f"    {line}" for line in configuration), self._first)
        # No columns are declared, as `add_hparams` would: TensorBoard takes all numbers of all runs.
        values = flatten({key: description[key] for key in COMPARED})
        compared = {key: value for key, value in values if isinstance(value, bool | int | float | str)}
        _, start, self._end_of_row = hparams(compared, {})  # type: ignore[no-untyped-call]
        board.file_writer.add_summary(start, self._first)  # type: ignore[attr-defined]  # its type says None

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

    def tick(self, images: int, phase: Phase, scalars: dict[str, float]) -> None:
        """Write the `scalars` since the last tick everywhere, and what is wrong with them."""
        now, schedule = time.monotonic(), self.course.schedule
        seconds_per_image = (now - self._tick_time) / max(images - self._tick_images, 1)
        self._tick_images, self._tick_time = images, now
        self.eta.observe(images, now)
        rates_fall = images > schedule.total - schedule.decay_images
        raised, texts = self.alarms.at_tick(phase.resolution, scalars, rates_fall=rates_fall)
        scalars = scalars | raised
        scalars |= {
            "schedule/resolution": phase.resolution,
            "schedule/growth": growth(phase),
            "schedule/alpha": phase.alpha,
            "schedule/batch": phase.batch,
            "schedule/learning_rate_g": phase.learning_rate_g,
            "schedule/learning_rate_d": phase.learning_rate_d,
            "speed/images_per_second": 1 / seconds_per_image,
            "speed/eta_seconds": self.eta.seconds_between(images, schedule.total),
            "speed/hours": self.hours,
        }
        for name, value in scalars.items():
            self.board.add_scalar(name, value, images)
        record = {re.sub("^(schedule|speed|health)/", "", name): value for name, value in scalars.items()}
        # A number that is not finite is null, because JSON has no NaN.
        finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with (self.run_dir / METRICS_FILE).open("a") as file:
            file.write(json.dumps({"images": images, "phase": phase.name, **finite}, allow_nan=False) + "\n")
        self.console.progress(images, phase)
        append_log(self.run_dir, self.console.tick(scalars))
        for text in texts:
            self.warn(f"Alarm: {text}")
            self.board.add_text("alarms", text, images)
        self.board.flush()

    def picture(self, tag: str, picture: Pixels, path: Path | None, images: int) -> None:
        """Show a picture [H, W, C] in TensorBoard, and write it as the PNG file `path`."""
        if path is not None:
            save_png(picture, path)
        shown = picture if picture.shape[2] in (3, 4) else picture[:, :, :1]
        self.board.add_image(tag, shown, images, dataformats="HWC")


def growth(phase: Phase) -> float:
    """Doublings of 4x4 so far; the doubling of a fade counts by its alpha."""
    return phase.resolution.bit_length() - MIN_RESOLUTION.bit_length() - 1 + phase.alpha


def keep_metrics(path: Path, images: int) -> None:
    """Drop the lines of a metrics.jsonl beyond `images`, and any that was cut short by a kill or a full disk."""
    kept = ""
    for line in path.read_text().splitlines() if path.is_file() else []:
        with suppress(ValueError, KeyError, TypeError):
            kept += f"{line}\n" * (json.loads(line)["images"] <= images)
    with atomic_write(path) as temporary:
        temporary.write_text(kept)
