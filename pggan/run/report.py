"""Writes the metrics, log lines and pictures of a run to the console, train.log, metrics.jsonl and TensorBoard."""

import json
import math
import re
import time
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, Self

from omegaconf import OmegaConf
from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from pggan.config.values import flatten
from pggan.core.atomic_io import atomic_write
from pggan.core.schedule import Course, Phase
from pggan.run.console import TrainingConsole
from pggan.run.eta import Eta
from pggan.run.health import Alarms
from pggan.run.summary import METRICS_FILE, records_of
from pggan.sampling.files import save_picture
from pggan.sampling.images import Pixels
from pggan.sampling.marks import BESIDE, DRAWN, mark_line

# These settings become columns of TensorBoard's HParams table, in which users compare runs.
COMPARED = ("seed", "precision", "elastic", "loss", "model", "schedule", "ema", "augmentation")


class NullReporter:
    """Replaces `Reporter` on all ranks except rank 0: every method can be called, and does nothing."""

    def __getattr__(self, name: str) -> Self:
        return self

    def __call__(self, *_: object, **__: object) -> None:
        pass


class Reporter:
    """Writes all metrics, log lines and pictures of a run; as a context manager, it closes the files."""

    def __init__(
        self, run_dir: Path, course: Course, eta: Eta, alarms: Alarms, *, images: int, began: float, marks: bool = True
    ) -> None:
        """Continue the files of the run at image count `images`, and remove all later entries."""
        self.run_dir, self.course, self.eta, self.alarms, self.began = run_dir, course, eta, alarms, began
        self.marks = marks
        kept = [json.dumps(record) for record in records_of(run_dir) if record["images"] <= images]
        with atomic_write(run_dir / METRICS_FILE) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept), "utf-8")
        self.console = TrainingConsole(run_dir, course, images)
        self.board = SummaryWriter(str(run_dir), purge_step=images + 1 if images else 0)
        self._first = images and images + 1  # image count (step) of the first TensorBoard entries of this command
        self._tick_images, self._tick_time = images, time.monotonic()

    def __enter__(self) -> Self:
        self.console.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.console.__exit__()
        with nullcontext() if kind is None else suppress(Exception):  # errors of `close` must not hide the run's error
            self.board.close()

    @property
    def hours(self) -> float:
        """Hours of training so far, earlier commands included."""
        return (time.monotonic() - self.began) / 3600

    def line(self, text: str) -> None:
        self.console.line(text)
        self._log(text)

    def warn(self, text: str) -> None:
        self.console.warn(text)
        self._log(text)

    def _log(self, text: str) -> None:
        with (self.run_dir / "train.log").open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    def describe(self, description: dict[str, Any]) -> None:
        """Write the configuration and this run's row of the HParams table to TensorBoard."""
        configuration = OmegaConf.to_yaml(OmegaConf.create(description)).splitlines()
        self.board.add_text("run/configuration", "\n".join(f"    {line}" for line in configuration), self._first)
        # Unlike `SummaryWriter.add_hparams`, the function `hparams` lets the HParams table show all metrics of the run.
        values = flatten({key: description[key] for key in COMPARED})
        compared = {key: value for key, value in values if isinstance(value, bool | int | float | str)}
        _, start, self._end_of_row = hparams(compared, {})  # type: ignore[no-untyped-call]
        self.board.file_writer.add_summary(start, self._first)  # type: ignore[attr-defined]

    def finish(self, lines: Sequence[str], images: int) -> None:
        """Print and log the final `lines`, and mark the run as complete in TensorBoard."""
        self.board.file_writer.add_summary(self._end_of_row, images)  # type: ignore[attr-defined]
        self.console.box(lines)
        for line in lines:
            self._log(line)

    def begin_phase(self, phase: Phase, images: int, *, is_new: bool) -> None:
        self.console.progress(images, phase)
        title = f"Phase {phase.index + 1} of {len(self.course.schedule.phases)}: {phase.name}, batch {phase.batch}"
        self.line(title if is_new else f"{title}, resumed at {images:,} images")
        if is_new:
            # This entry has step `images + 1`: a run that resumes at `images` deletes this entry and writes it again.
            self.board.add_text("phases", title, images + 1)

    def tick(self, images: int, phase: Phase, scalars: dict[str, float]) -> None:
        """Write `scalars` {TensorBoard tag: value} and new alarms to the console, the log files and TensorBoard."""
        now, schedule = time.monotonic(), self.course.schedule
        seconds_per_image = (now - self._tick_time) / max(images - self._tick_images, 1)
        self._tick_images, self._tick_time = images, now
        self.eta.observe(images, now)
        rates_fall = images > schedule.total - schedule.decay_images
        raised, texts = self.alarms.at_tick(phase.resolution, scalars, rates_fall=rates_fall)
        scalars = scalars | raised
        scalars |= {
            "schedule/resolution": phase.resolution,
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
        finite = {name: value if math.isfinite(value) else None for name, value in record.items()}
        with (self.run_dir / METRICS_FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"images": images, "phase": phase.name, **finite}, allow_nan=False) + "\n")
        self._log(self.console.tick(scalars))
        for text in texts:
            self.warn(f"Alarm: {text}")
            self.board.add_text("alarms", text, images)
        self.board.flush()

    def evaluated(self, seconds: float) -> None:
        self._tick_time += seconds
        self.eta.evaluated(seconds)

    def mark(self, images: int, how: str = DRAWN) -> str | None:
        """Return a text that marks a picture as generated; None if the user wants no marks."""
        return mark_line(self.marks, self.run_dir, f"after {images:,} images, seeds from 0 on", how)

    def picture(self, tag: str, picture: Pixels, path: Path | None, images: int) -> None:
        """Write a picture [H, W, C] to TensorBoard, and as a PNG file unless `path` is None."""
        if path is not None:
            mark = self.mark(images, BESIDE if tag.endswith("neighbours") else DRAWN)
            save_picture(picture, path, None if tag.endswith("reals") else mark)
        shown = picture if picture.shape[2] in (3, 4) else picture[:, :, :1]
        self.board.add_image(tag, shown, images, dataformats="HWC")
