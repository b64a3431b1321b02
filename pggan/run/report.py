"""Where numbers go: averages per tick to TensorBoard, metrics.jsonl, train.log and the console.

Nothing here waits for the device between ticks.
"""

import json
import math
import sys
import time
from collections import deque
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import TYPE_CHECKING, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from pggan.core.architecture import Architecture
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import peak_memory
from pggan.core.schedule import Phase, Schedule
from pggan.run.metrics import COUNTED, PEAK, PEAKED
from pggan.run.run_dir import append_log
from pggan.sampling.images import Pixels

if TYPE_CHECKING:
    from pggan.run.tensorboard import TensorBoardWriter


SPIKE_FACTOR = 100  # times what a gradient norm has been lately; growth and restarts stay far below
SPIKE_TICKS = 10  # lately


class GradientSpikeDetector:
    """Detects gradients that are far larger than they have been lately."""

    def __init__(self) -> None:
        self._lately: dict[str, deque[float]] = {}

    def detect(self, means: dict[str, float]) -> list[str]:
        """What to say about the numbers of one tick; nothing, if all is well."""
        said = []
        for name, peak in means.items():
            if not name.endswith(PEAKED + PEAK):
                continue
            lately = self._lately.setdefault(name, deque(maxlen=SPIKE_TICKS))
            usual = median(lately) if lately else math.inf
            if peak > SPIKE_FACTOR * usual:
                said.append(f"{name} is {peak:.3g}, {peak / usual:,.0f} times what it was lately")
            if math.isfinite(peak):
                lately.append(peak)
        return said


def remaining_seconds(schedule: Schedule, architecture: Architecture, images: int, seconds_per_image: float) -> float:
    """What is left of training, from today's pace and the arithmetic cost of the phases still ahead."""
    here = architecture.multiply_adds(schedule.at(images).resolution)
    total = 0.0
    for phase in schedule.phases:
        left = min(phase.end, schedule.total) - max(phase.start, images)
        total += max(left, 0) * seconds_per_image * architecture.multiply_adds(phase.resolution) / here
    return total


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}"


class NullReporter:
    """What the ranks besides rank 0 report: nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def begin(self, images: int) -> None:
        """Go on from `images`."""

    def line(self, text: str) -> None:
        """Show a line."""

    def progress(self, images: int, phase: Phase) -> None:
        """Show how far training is."""

    def tick(self, images: int, phase: Phase, means: dict[str, float]) -> None:
        """Show the `means` since the last tick."""

    def picture(self, tag: str, picture: Pixels, images: int) -> None:
        """Show a picture [H, W, C]."""

    def flush(self) -> None:
        """Make sure that all is written."""


class Reporter(NullReporter):
    """The one place where a run's numbers, lines and pictures are written."""

    def __init__(self, run_dir: Path, schedule: Schedule, architecture: Architecture, device: torch.device) -> None:
        self.run_dir = run_dir
        self.schedule = schedule
        self.architecture = architecture
        self.device = device
        self.spikes = GradientSpikeDetector()
        self.console = Console(stderr=True, highlight=False)
        self._writer: TensorBoardWriter | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[status]}"),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=schedule.total, status="")
        self._tick_images = 0
        self._tick_time = time.monotonic()

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        if self._writer is not None:
            try:
                self._writer.close()
            except OSError:  # a full disk, which is why the block failed
                if kind is None:
                    raise

    def begin(self, images: int) -> None:
        """Go on from `images`: what an interrupted run wrote beyond it is dropped."""
        metrics = self.run_dir / "metrics.jsonl"
        if metrics.is_file():
            lines = metrics.read_text().splitlines()
            with atomic_write(metrics) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in lines if _images_of(line) <= images))
        if self._writer is not None:
            self._writer.close()
        from pggan.run.tensorboard import TensorBoardWriter  # slow to import, and needed by training only

        self._writer = TensorBoardWriter(self.run_dir, first=images + 1 if images else 0)
        self._tick_images = images
        self._tick_time = time.monotonic()

    def line(self, text: str) -> None:
        """Show a line on the console and keep it in train.log."""
        self.console.print(text, markup=False, soft_wrap=True)
        append_log(self.run_dir, text)

    def progress(self, images: int, phase: Phase) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=images, description=phase.name)

    def tick(self, images: int, phase: Phase, means: dict[str, float]) -> None:
        """Write everywhere the `means` since the last tick, which the device has finished."""
        now = time.monotonic()
        shown = max(images - self._tick_images, 1)
        seconds_per_image = (now - self._tick_time) / shown
        left = remaining_seconds(self.schedule, self.architecture, images, seconds_per_image)
        alarms = self.spikes.detect(means)
        scalars: dict[str, float] = {
            **means,
            "schedule/resolution": phase.resolution,
            "schedule/alpha": phase.alpha,
            "schedule/batch": phase.batch,
            "schedule/learning_rate_g": phase.learning_rate_g,
            "schedule/learning_rate_d": phase.learning_rate_d,
            "speed/images_per_second": 1 / seconds_per_image,
            "speed/memory_bytes": peak_memory(self.device),
            "speed/eta_seconds": left,
            "health/alarms": len(alarms),
        }
        assert self._writer is not None, "begin() comes first"
        for name, value in scalars.items():
            self._writer.scalar(name, value, images)
        self._writer.flush()
        about = {name.split("/", 1)[1]: value for name, value in scalars.items() if name not in means}
        finite = {name: value if math.isfinite(value) else None for name, value in means.items()}  # JSON has no NaN
        record = {"images": images, "phase": phase.name, **about, **finite}
        with (self.run_dir / "metrics.jsonl").open("a") as metrics:
            metrics.write(json.dumps(record, allow_nan=False) + "\n")
        status = f"{1 / seconds_per_image:.1f} img/s  {clock(left)} left"
        self._progress.update(self._task, status=status)
        self.line(
            f"{images:>9,} images  {phase.name:<16} alpha {phase.alpha:.2f}  D {means.get('D/loss', 0):8.3f}  "
            f"G {means.get('G/loss', 0):8.3f}  {status}  {peak_memory(self.device) / 2**20:.0f} MiB"
        )
        for alarm in alarms:
            self.line(f"Alarm: {alarm}.")
        for name in ("G", "D"):
            if skipped := means.get(f"{name}{COUNTED}"):
                self.line(f"Skipped {skipped:.0f} updates of {name}: their gradients were not finite.")
        self._tick_images, self._tick_time = images, now

    def picture(self, tag: str, picture: Pixels, images: int) -> None:
        """Show a picture [H, W, C] in TensorBoard."""
        assert self._writer is not None, "begin() comes first"
        self._writer.picture(tag, picture, images)

    def flush(self) -> None:
        """Hand to the system what TensorBoard's file still holds back.

        Before a state is saved, so that a process killed afterwards has reported everything up to there.
        """
        assert self._writer is not None, "begin() comes first"
        self._writer.flush()


def _images_of(line: str) -> int:
    try:
        return int(json.loads(line)["images"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a kill
        return sys.maxsize
