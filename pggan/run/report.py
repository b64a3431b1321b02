"""Where numbers go: averages per tick to TensorBoard, metrics.jsonl, train.log and the console.

Nothing here waits for the device between ticks.
"""

import json
import math
import sys
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from statistics import median
from typing import Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from pggan.core.architecture import Architecture
from pggan.core.atomic_io import atomic_write
from pggan.core.devices import peak_memory
from pggan.core.schedule import Phase, Schedule
from pggan.run.metric_accumulator import COUNTED, PEAK, PEAKED
from pggan.run.run_dir import append_log
from pggan.sampling.output.images import Pixels

SPIKE_FACTOR = 100  # times the recent median of a gradient norm; growth and restarts stay far below
SPIKE_TICKS = 10  # whose median it is
LARGEST_QUEUE = 2  # pictures that wait to be encoded: 12 MB each, seconds of work, usually minutes apart


class GradientSpikeDetector:
    """Detects gradients that are far larger than they have been lately."""

    def __init__(self) -> None:
        self._recent: dict[str, deque[float]] = {}

    def detect(self, means: dict[str, float]) -> list[str]:
        """One message per spike among the numbers of one tick."""
        messages = []
        for name, peak in means.items():
            if name.endswith(PEAKED + PEAK):
                recent = self._recent.setdefault(name, deque(maxlen=SPIKE_TICKS))
                usual = median(recent) if recent else math.inf
                if peak > SPIKE_FACTOR * usual:
                    messages.append(f"{name} is {peak:.3g}, {peak / usual:,.0f} times what it was lately")
                if math.isfinite(peak):
                    recent.append(peak)
        return messages


def remaining_seconds(schedule: Schedule, architecture: Architecture, images: int, seconds_per_image: float) -> float:
    """The time left, from the speed at `images` and the arithmetic cost of the phases still ahead."""
    ahead = [(phase, min(phase.end, schedule.total) - max(phase.start, images)) for phase in schedule.phases]
    work = sum(max(left, 0) * architecture.multiply_adds(phase.resolution) for phase, left in ahead)
    return work * seconds_per_image / architecture.multiply_adds(schedule.at(images).resolution)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}"


class NullReporter:
    """What ranks other than 0 report: nothing."""

    def restart(self, images: int) -> None:
        """Continue from `images` after a rollback: what was written beyond it is dropped."""

    def line(self, text: str) -> None:
        """Show a line on the console and keep it in train.log."""

    def progress(self, images: int, phase: Phase) -> None:
        """Move the progress bar to `images`."""

    def tick(self, images: int, phase: Phase, means: dict[str, float]) -> None:
        """Write the `means` since the last tick everywhere; the device has finished them."""

    def picture(self, tag: str, picture: Pixels, path: Path, images: int) -> None:
        """Write a picture [H, W, C] as the PNG file `path` and show it in TensorBoard, soon; training does not wait.

        What goes wrong is raised by the next call of this, `tick` or `flush`.
        """

    def flush(self) -> None:
        """Hand on what is held back, before a state is saved: a process killed afterwards has reported all before.

        Waits for pictures; for any thread.
        """


class Reporter(NullReporter):
    """The one place where a run's numbers, lines and pictures are written."""

    def __init__(
        self, run_dir: Path, schedule: Schedule, architecture: Architecture, device: torch.device, images: int
    ) -> None:
        """Args: images: shown already."""
        self.run_dir, self.schedule, self.architecture, self.device = run_dir, schedule, architecture, device
        self.spikes = GradientSpikeDetector()
        self.console = Console(stderr=True, highlight=False)
        name, status = TextColumn("{task.description}"), TextColumn("{task.fields[status]}")
        options: dict[str, Any] = {"transient": True, "disable": not self.console.is_terminal}
        self._progress = Progress(name, BarColumn(), TaskProgressColumn(), status, console=self.console, **options)
        self._task = self._progress.add_task("starting", total=schedule.total, status="")
        # One thread, so that pictures are written in their order.
        self._encoder = ThreadPoolExecutor(1, "pictures")
        self._pictures: deque[Future[None]] = deque()
        self._open(images)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._progress.stop()
        at_once = kind is not None and not issubclass(kind, Exception)
        self._encoder.shutdown(wait=not at_once, cancel_futures=at_once)
        # A full disk may be why the block failed.
        with nullcontext() if kind is None else suppress(OSError), closing(self._board):
            if not at_once:
                self.flush()

    def restart(self, images: int) -> None:
        self.flush()
        self._board.close()
        self._open(images)

    def _open(self, images: int) -> None:
        """Continue the files of the run from `images`; what was written beyond it is dropped."""
        from pggan.run.tensorboard import TensorBoardWriter  # slow to import, and needed by rank 0 only

        metrics = self.run_dir / "metrics.jsonl"
        if metrics.is_file():
            lines = metrics.read_text().splitlines()
            with atomic_write(metrics) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in lines if _images_of(line) <= images))
        self._board = TensorBoardWriter(self.run_dir, first=images + 1 if images else 0)
        self._tick_images, self._tick_time = images, time.monotonic()

    def line(self, text: str) -> None:
        self.console.print(text, markup=False, soft_wrap=True)
        append_log(self.run_dir, text)

    def progress(self, images: int, phase: Phase) -> None:
        self._progress.update(self._task, completed=images, description=phase.name)

    def tick(self, images: int, phase: Phase, means: dict[str, float]) -> None:
        self._raise_of_pictures(all_but=LARGEST_QUEUE)
        now = time.monotonic()
        seconds_per_image = (now - self._tick_time) / max(images - self._tick_images, 1)
        self._tick_images, self._tick_time = images, now
        left = remaining_seconds(self.schedule, self.architecture, images, seconds_per_image)
        alarms = self.spikes.detect(means)
        about: dict[str, float] = {
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
        for name, value in {**means, **about}.items():
            self._board.scalar(name, value, images)
        self._board.flush()
        record = {"images": images, "phase": phase.name, **{name.split("/")[1]: about[name] for name in about}}
        record |= {name: value if math.isfinite(value) else None for name, value in means.items()}  # JSON has no NaN
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

    def picture(self, tag: str, picture: Pixels, path: Path, images: int) -> None:
        self._raise_of_pictures(all_but=LARGEST_QUEUE - 1)
        self._pictures.append(self._encoder.submit(self._board.picture, tag, picture, path, images))

    def _raise_of_pictures(self, all_but: int) -> None:
        """Wait until no more than `all_but` pictures are left to be written; raises what went wrong with one."""
        while self._pictures and (len(self._pictures) > all_but or self._pictures[0].done()):
            self._pictures.popleft().result()

    def flush(self) -> None:
        for picture in self._pictures.copy():
            picture.result()
        self._board.flush()


def _images_of(line: str) -> int:
    try:
        return int(json.loads(line)["images"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a kill
        return sys.maxsize
