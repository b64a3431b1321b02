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
        self.mode, self.course, self.images, self.phase = mode, course, images, course.at(images)
        self.scalars: dict[str, float] = {}  # of the last tick
        self.metric, self.saved = "none yet", "none yet"
        self._tick_time = self._saved_time = time.monotonic()
        self.warnings: deque[str] = deque(maxlen=KEPT_WARNINGS)
        # Not the display of a notebook: a view in it would grow with every frame.
        self._console = LastingConsole(stderr=True, highlight=False, force_jupyter=False)
        self.is_live = mode == "auto" and self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(get_renderable=self.frame, console=self._console, refresh_per_second=FRAMES_PER_SECOND)

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
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

    def note_checkpoint(self, images: int) -> None:
        """Note that the checkpoint of `images` is on the disk."""
        if self.saved != f"{images:,} images":
            self.saved, self._saved_time = f"{images:,} images", time.monotonic()

    def tick(self, scalars: dict[str, float]) -> str:
        """Show the `scalars` since the last tick by their names; returns the line that says so, also for train.log."""
        self.scalars, self._tick_time = scalars, time.monotonic()
        for tag in [tag for tag in scalars if re.fullmatch(IMAGE_QUALITY, tag)][:1]:
            self.metric = f"{tag.removeprefix('metrics/')} {scalars[tag]:.3g} at {self.images:,}"
        size = f"{self.phase.resolution}x{self.phase.resolution}"
        losses = "  ".join(f"{name} {_fit(scalars.get(f'{name}/loss', 0), 7, 2)}" for name in "DG")
        text = f"{self.images:>10,} {size:>9} alpha {self.phase.alpha:.2f}  {losses} "
        text += f"{_fit(scalars['speed/images_per_second'], 6, 1)} img/s {clock(scalars['speed/eta_seconds']):>8} left"
        if not self.is_live:
            self.line(text)
        if self.mode == "verbose":
            for row in wrap("  ".join(f"{name} {value:.4g}" for name, value in scalars.items()), WIDTH - 4):
                self.line(f"    {row}")
        return text

    def frame(self) -> RenderableType:
        """The live view, at most 80 columns wide."""
        phase, schedule, scalars, now = self.phase, self.course.schedule, self.scalars, time.monotonic()
        end = min(phase.end, schedule.total)
        levels = Text()
        for side in resolutions_between(schedule.first_resolution, schedule.final_resolution):
            style = "bold reverse" if side == phase.resolution else "green" if side < phase.resolution else "dim"
            levels.append(f"{side}", style).append(" ")
        left = ahead = "time left unknown"
        shown = ["The first scalars come with the first tick."]
        if scalars:
            left = f"{clock(max(scalars['speed/eta_seconds'] - (now - self._tick_time), 0))} left"
            ahead = f"{clock((end - self.images) / scalars['speed/images_per_second'])} left"
            ago = "" if self.saved == "none yet" else f", {clock(now - self._saved_time)} ago"
            numbers = (
                f"{scalars['speed/images_per_second']:,.1f} img/s  {scalars['speed/memory_bytes'] / 2**20:,.0f} MiB"
            )
            numbers += "".join(f"  {name} {scalars.get(f'{name}/loss', 0):.3f}" for name in "DG")
            numbers += "".join(f"  D({of}) {scalars.get(f'scores/{of}', 0):.2f}" for of in ("reals", "fakes"))
            shown = [numbers, f"metric {self.metric}", f"checkpoint {self.saved}{ago}"]
        table = Table.grid(padding=(0, 2))
        table.add_row("growth", levels, f"phase {phase.index + 1} of {len(schedule.phases)}: {phase.name}")
        run = f"{self.images:,} of {schedule.total:,}, {left}"
        table.add_row("run", _bar(self.images / schedule.total), run)
        done = (self.images - phase.start) / max(end - phase.start, 1)
        table.add_row("phase", _bar(done), f"batch {phase.batch}, {ahead}")
        if phase.fading:
            table.add_row("alpha", _bar(phase.alpha), f"{phase.alpha:.2f} of the new layers")
        rows = [Text(text, overflow="fold") for text in shown]
        return Group(table, *rows, *(Text(f"! {text}", "yellow", overflow="fold") for text in self.warnings))


def _fit(value: float, width: int, digits: int) -> str:
    """`value` in `width` columns, with `digits` behind the point if there is room."""
    text = f"{value:{width}.{digits}f}"
    return text if len(text) <= width else f"{value:{width}.0f}"


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=min(share, 1.0), width=BAR_WIDTH)
