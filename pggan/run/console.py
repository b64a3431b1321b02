"""The console output of a training run on stderr: log lines and, on a terminal, a live view below these lines.

A file, a pipe, a notebook or a terminal with TERM=dumb gets only the lines, without control characters.
"""

import re
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pggan.checkpoints.read import checkpoints_of
from pggan.core.architecture import resolutions_between
from pggan.core.schedule import Course, Phase
from pggan.core.text import duration

# Matches the tags of metrics that compare fakes with reals, except metrics of one level of a pyramid (swd/32).
IMAGE_QUALITY = r"metrics/(?![a-z_]+_(floor|reals))[a-z_]+(/[a-z]+)?@.*"
FRAMES_PER_SECOND = 1  # rate of the live view; drawing one frame delays training by 3 ms
KEPT_WARNINGS = 3  # the live view shows the last three warnings; train.log keeps all warnings
BAR_WIDTH = 26


class LastingConsole(Console):
    """A console that becomes quiet, and does not fail, when its pipe or terminal is closed."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print `objects`; a closed pipe or terminal is ignored."""
        with suppress(OSError):
            super().print(*objects, **settings)

    def on_broken_pipe(self) -> None:
        """Become quiet when the pipe is closed; without this method, rich would end the program."""
        self.quiet = True


class TrainingConsole:
    """The console output of one training run; a context manager, which shows the live view."""

    def __init__(self, run_dir: Path, course: Course, images: int) -> None:
        """Args: images: number of images that the run has shown so far."""
        self.run_dir, self.course, self.images, self.phase = run_dir, course, images, course.at(images)
        self.rows = {"tick": "none yet", "metric": "none yet"}  # texts about the last tick and metric
        self._end: float | None = None  # expected end of the run, on the clock of time.monotonic()
        self.warnings: deque[str] = deque(maxlen=KEPT_WARNINGS)
        # A live view inside a Jupyter notebook would add a new copy of itself with every frame.
        self._console = LastingConsole(stderr=True, highlight=False, force_jupyter=False)
        self.is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(get_renderable=self.frame, console=self._console, refresh_per_second=FRAMES_PER_SECOND)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._live.stop()

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line."""
        self._console.print(text, markup=False, soft_wrap=True, style=style)

    def warn(self, text: str) -> None:
        """Print a warning, and keep it in the live view."""
        self.warnings.append(f"{self.images:,} images: {text}")
        self.line(text, "yellow")

    def progress(self, images: int, phase: Phase) -> None:
        """Store the images shown and the current phase for the next frame of the live view."""
        self.images, self.phase = images, phase

    def tick(self, scalars: dict[str, float]) -> str:
        """Show the `scalars` (value by name) of the last tick; returns the tick's line for train.log."""
        left, side = scalars["speed/eta_seconds"], self.phase.resolution
        self._end = time.monotonic() + left
        for tag in [tag for tag in scalars if re.fullmatch(IMAGE_QUALITY, tag)][:1]:
            self.rows["metric"] = f"{tag.removeprefix('metrics/')} {scalars[tag]:.3g} at {self.images:,}"
        losses = " ".join(f"{name} {scalars.get(f'{name}/loss', 0):8.2f}" for name in "DG")
        self.rows["tick"] = f"{losses} {scalars['speed/images_per_second']:6.1f} img/s"
        size = f"{side}x{side}"
        text = f"{self.images:>10,} {size:>9} alpha {self.phase.alpha:.2f} {self.rows['tick']} {duration(left):>8} left"
        if not self.is_live:
            self.line(text)
        return text

    def frame(self) -> RenderableType:
        """Build the live view, at most 80 columns wide."""
        phase, schedule = self.phase, self.course.schedule
        levels = Text()
        for side in resolutions_between(schedule.first_resolution, schedule.final_resolution):
            style = "bold reverse" if side == phase.resolution else "green" if side < phase.resolution else "dim"
            levels.append(f"{side}", style).append(" ")
        left = "time left unknown" if self._end is None else f"{duration(max(self._end - time.monotonic(), 0))} left"
        done = (self.images - phase.start) / max(min(phase.end, schedule.total) - phase.start, 1)
        table = Table.grid(padding=(0, 2))
        table.add_row("growth", levels, f"phase {phase.index + 1} of {len(schedule.phases)}: {phase.name}")
        table.add_row("run", _bar(self.images / schedule.total), f"{self.images:,} of {schedule.total:,}, {left}")
        table.add_row("phase", _bar(done), f"batch {phase.batch}, alpha {phase.alpha:.2f}")
        saved = [f"{int(path.name):,} images" for path in checkpoints_of(self.run_dir)]
        rows = self.rows | {"checkpoint": (saved or ["none yet"])[-1]}
        shown = [Text(f"{name:<11}{text}", overflow="fold") for name, text in rows.items()]
        return Group(table, *shown, *(Text(f"! {text}", "yellow", overflow="fold") for text in self.warnings))


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=min(share, 1.0), width=BAR_WIDTH)
