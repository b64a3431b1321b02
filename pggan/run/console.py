"""The console of a run: lines, and on a terminal a live view below them.  All of it goes to stderr.

Without a terminal (a file, a pipe, a notebook) there are lines alone, without control characters.
"""

import re
import time
from collections import deque
from contextlib import suppress
from textwrap import wrap
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from pggan.core.architecture import resolutions_between
from pggan.core.schedule import Course, Phase

IMAGE_QUALITY = r"metrics/(?![a-z_]+_(floor|reals))[a-z_]+(/[a-z]+)?@.*"  # neither of reals nor of one level
FRAMES_PER_SECOND = 1  # each takes 3 ms from the training
KEPT_WARNINGS = 3  # that stay in the live view; train.log has all of them
BAR_WIDTH = 26
WIDTH = 80
SHOWN_SCORES = ("reals", "fakes")


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss, from 100 hours on as days and hours."""
    minutes, second = divmod(round(seconds), 60)
    hour, minute = divmod(minutes, 60)
    return f"{hour}:{minute:02}:{second:02}" if hour < 100 else f"{hour // 24} d {hour % 24} h"


class LastingConsole(Console):
    """A console whose reader may leave, by the end of a pipe or a closed terminal: then it is quiet."""

    def print(self, *objects: Any, **settings: Any) -> None:
        """Print what there is a reader for."""
        with suppress(OSError):
            super().print(*objects, **settings)

    def on_broken_pipe(self) -> None:
        """Go on without a reader, where rich would end the program."""
        self.quiet = True


class TrainingConsole:
    """The console of one run, as `monitor.console` asks for it."""

    def __init__(self, mode: str, course: Course, images: int) -> None:
        """Args: mode: auto, plain, quiet or verbose; images: shown already."""
        self.mode, self.course, self.images = mode, course, images
        self.phase = course.schedule.at(images)
        self.seconds_per_image = self.seconds_left = 0.0
        self.scalars: dict[str, float] = {}
        self.metric, self.saved, self.saved_time = "none yet", 0, 0.0
        self._tick_time = time.monotonic()
        self.warnings: deque[str] = deque(maxlen=KEPT_WARNINGS)
        # Not the display of a notebook: a view in it would grow with every frame.
        self._console = LastingConsole(stderr=True, highlight=False, force_jupyter=False)
        capable = self._console.is_terminal and not self._console.is_dumb_terminal
        self.is_live = mode == "auto" and capable
        self._live = Live(get_renderable=self.frame, console=self._console, refresh_per_second=FRAMES_PER_SECOND)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_live:
            with suppress(OSError):
                self._live.stop()

    def line(self, text: str, *, always: bool = False) -> None:
        """Print a line; with monitor.console=quiet only if `always`."""
        if always or self.mode != "quiet":
            self._console.print(text, markup=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning, and keep it in the live view."""
        self.warnings.append(f"{self.images:,} images: {text}")
        self._console.print(text, markup=False, soft_wrap=True, style="yellow")

    def progress(self, images: int, phase: Phase) -> None:
        """Note how far training is; the next frame shows it."""
        self.images, self.phase = images, phase

    def tick(self, seconds_per_image: float, seconds_left: float, scalars: dict[str, float]) -> str:
        """Show the `scalars` since the last tick by their names; returns the line that says so, also for train.log."""
        self.seconds_per_image, self.seconds_left, self.scalars = seconds_per_image, seconds_left, scalars
        self._tick_time = time.monotonic()
        measured = [tag for tag in scalars if re.fullmatch(IMAGE_QUALITY, tag)]
        if measured:
            self.metric = f"{measured[0].removeprefix('metrics/')} {scalars[measured[0]]:.3g} at {self.images:,}"
        size, rate = f"{self.phase.resolution}x{self.phase.resolution}", 1 / seconds_per_image
        losses = "  ".join(f"{name} {_fit(scalars.get(f'{name}/loss', 0), 7, 2)}" for name in "DG")
        text = f"{self.images:>10,} {size:>9} alpha {self.phase.alpha:.2f}  {losses} {_fit(rate, 6, 1)} img/s"
        text += f" {clock(seconds_left):>8} left"
        if not self.is_live:
            self.line(text)
        if self.mode == "verbose":
            for row in wrap("  ".join(f"{name} {value:.4g}" for name, value in scalars.items()), WIDTH - 4):
                self.line(f"    {row}")
        return text

    def note_checkpoint(self, images: int) -> None:
        """Note that the checkpoint of `images` is on the disk."""
        if images != self.saved:
            self.saved, self.saved_time = images, time.monotonic()

    def frame(self) -> RenderableType:
        """The live view, at most 80 columns wide."""
        since = time.monotonic() - self._tick_time
        phase, schedule, spi = self.phase, self.course.schedule, self.seconds_per_image
        end = min(phase.end, schedule.total)
        left = max(self.seconds_left - since, 0) if spi else None
        table = Table.grid(padding=(0, 2))
        table.add_row("growth", self._levels(), f"phase {phase.index + 1} of {len(schedule.phases)}: {phase.name}")
        share = self.images / schedule.total
        table.add_row("run", _bar(share), f"{self.images:,} of {schedule.total:,}, {_left(left)}")
        done = (self.images - phase.start) / max(end - phase.start, 1)
        ahead = (end - self.images) * spi if spi else None
        table.add_row("phase", _bar(done), f"batch {phase.batch}, {_left(ahead)}")
        if phase.fading:
            table.add_row("alpha", _bar(phase.alpha), f"{phase.alpha:.2f} of the new layers")
        rows = [table, *self._scalars()]
        rows += [Text(f"! {text}", style="yellow", overflow="fold") for text in self.warnings]
        return Group(*rows)

    def _levels(self) -> Text:
        """All resolutions of the run; the resolution of the phase stands out."""
        text, schedule = Text(), self.course.schedule
        for side in resolutions_between(schedule.first_resolution, schedule.final_resolution):
            now = side == self.phase.resolution
            text.append(f"{side}", "bold reverse" if now else "green" if side < self.phase.resolution else "dim")
            text.append(" ")
        return text

    def _scalars(self) -> list[RenderableType]:
        if not self.seconds_per_image:
            return [Text("The first scalars come with the first tick.", "dim")]
        shown = [
            f"{1 / self.seconds_per_image:,.1f} img/s",
            f"{self.scalars.get('speed/memory_bytes', 0) / 2**20:,.0f} MiB",
            *(f"{name} {self.scalars.get(f'{name}/loss', 0):.3f}" for name in "DG"),
            *(f"D({of}) {self.scalars.get(f'scores/{of}', 0):.2f}" for of in SHOWN_SCORES),
        ]
        saved = "none yet"
        if self.saved:
            saved = f"{self.saved:,} images, {clock(time.monotonic() - self.saved_time)} ago"
        lines = ["  ".join(shown), f"metric {self.metric}", f"checkpoint {saved}"]
        return [Text(line, overflow="fold") for line in lines]


def _fit(value: float, width: int, digits: int) -> str:
    """`value` in `width` columns, with `digits` behind the point if there is room."""
    text = f"{value:{width}.{digits}f}"
    return text if len(text) <= width else f"{value:{width}.0f}"


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=min(share, 1.0), width=BAR_WIDTH)


def _left(seconds: float | None) -> str:
    return "time left unknown" if seconds is None else f"{clock(seconds)} left"
