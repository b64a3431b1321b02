"""Prints the log lines of a run to stderr and, on a terminal, a live view of the progress below the lines."""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import Any, Self

import numpy as np
from PIL import Image
from rich.color import Color
from rich.console import Console, Group, RenderableType
from rich.constrain import Constrain
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from pggan.checkpoints.read import checkpoints_of
from pggan.core.architecture import resolutions_between
from pggan.core.schedule import Course, Phase
from pggan.core.text import duration
from pggan.run.summary import last_quality, quality
from pggan.sampling.images import Pixels, to_pil

FRAMES_PER_SECOND = 1  # the live view is drawn once per second, because each drawing delays training by 3 ms
KEPT_WARNINGS = 3  # number of warnings in the live view; train.log keeps all warnings
BAR_WIDTH = 26
FACES = 8


class LastingConsole(Console):
    """A console on stderr that goes quiet, instead of failing, when its pipe or terminal is closed."""

    def __init__(self) -> None:
        # The Jupyter mode of rich is off, because it would print a new copy of the live view every second.
        super().__init__(stderr=True, highlight=False, markup=False, emoji=False, force_jupyter=False)

    def say(self, text: str, style: str | None = None) -> None:
        if self.is_terminal and "pggan " not in text:  # users copy commands, so commands are not wrapped
            text = fill(text, self.width, break_long_words=False, break_on_hyphens=False)
        self.print(text, soft_wrap=True, style=style)

    def box(self, lines: Sequence[str]) -> None:
        fits = self.is_terminal and max(map(len, lines)) + 4 <= self.width
        text = Text("\n".join(lines))
        self.print(Panel.fit(text) if fits else text, soft_wrap=not fits)

    def print(self, *objects: Any, **settings: Any) -> None:
        with suppress(OSError):
            super().print(*objects, **settings)

    def on_broken_pipe(self) -> None:
        """Go on if stderr is a closed pipe; the method of the base class would end the program."""
        self.quiet = True


class TrainingConsole:
    """Prints the log lines of a training run. As a context manager, it also shows a live view of the progress."""

    def __init__(self, run_dir: Path, course: Course, images: int) -> None:
        self.run_dir, self.course, self.images, self.phase = run_dir, course, images, course.at(images)
        self.rows = {"tick": "none yet", "quality": last_quality(run_dir) or "not measured yet"}
        self.end = 0.0  # expected end of the run, on the clock of time.monotonic(); 0 if not yet known
        self.warnings: deque[str] = deque(maxlen=KEPT_WARNINGS)
        self._strip: list[RenderableType] = []  # thumbnails of the newest fakes, if the terminal has true colour
        self._console = LastingConsole()
        self.line, self.box = self._console.say, self._console.box
        self.is_live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._live = Live(
            get_renderable=self.frame, console=self._console, refresh_per_second=FRAMES_PER_SECOND, transient=True
        )

    def __enter__(self) -> Self:
        if self.is_live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the live view, but leave the newest thumbnails of fakes on the terminal."""
        with suppress(OSError):
            self._live.stop()
        for strip in self._strip:
            self._console.print(strip, end="")
        self._strip = []

    def warn(self, text: str) -> None:
        self.warnings.append(f"{self.images:,} images: {text}")
        self.line(text, "yellow")

    def faces(self, fakes: Pixels) -> None:
        """Show thumbnails of the first 8 images of `fakes` [N, R, R, C], if the terminal has true colour."""
        if self.is_live and self._console.color_system == "truecolor":
            self._strip = [half_blocks(fakes[:FACES], self._console.width)]

    def progress(self, images: int, phase: Phase) -> None:
        self.images, self.phase = images, phase

    def tick(self, scalars: dict[str, float]) -> str:
        """Show `scalars` in the live view or, without a live view, print a line; returns the line for train.log."""
        left, side = scalars["speed/eta_seconds"], self.phase.resolution
        self.end = time.monotonic() + left
        if words := quality(scalars):
            self.rows["quality"] = f"{words} (at {self.images:,} images)"
        losses = " ".join(f"{name} {scalars.get(f'{name}/loss', 0):8.2f}" for name in "DG")
        self.rows["tick"] = f"{losses} {scalars['speed/images_per_second']:6.1f} img/s"
        size = f"{side}x{side}"
        text = f"{self.images:>10,} {size:>9} alpha {self.phase.alpha:.2f} {self.rows['tick']} {duration(left):>8} left"
        if not self.is_live:
            self.line(text)
        return text

    def frame(self) -> RenderableType:
        phase, schedule = self.phase, self.course.schedule
        levels = Text()
        for side in resolutions_between(schedule.first_resolution, schedule.final_resolution):
            style = "bold reverse" if side == phase.resolution else "green" if side < phase.resolution else "dim"
            levels.append(f"{side}", style).append(" ")
        left = f", {duration(max(self.end - time.monotonic(), 0))} left" * bool(self.end)
        done = (self.images - phase.start) / max(min(phase.end, schedule.total) - phase.start, 1)
        table = Table.grid(padding=(0, 2))
        table.add_row("growth", levels, f"phase {phase.index + 1} of {len(schedule.phases)}: {phase.name}")
        table.add_row("run", _bar(self.images / schedule.total), f"{self.images:,} of {schedule.total:,}{left}")
        table.add_row("phase", _bar(done), f"batch {phase.batch}, alpha {phase.alpha:.2f}")
        saved = [f"{int(path.name):,} images" for path in checkpoints_of(self.run_dir)]
        rows = Table.grid(padding=(0, 1))
        for name, text in (self.rows | {"checkpoint": (saved or ["none yet"])[-1]}).items():
            rows.add_row(name, Text(text))
        texts = Group(table, rows, *(Text(f"! {text}", "yellow") for text in self.warnings))
        # On Ctrl-C, the terminal prints ^C. Lines leave room for ^C, because rich can't erase a line that wraps.
        return Group(*self._strip, Constrain(texts, self._console.width - len("^C")))


def half_blocks(fakes: Pixels, width: int) -> RenderableType:
    """Draw images [N, R, R, C] side by side with half-block characters, at most `width` characters wide."""
    side = max(min(fakes.shape[1], width // len(fakes)) // 2 * 2, 2)
    small = [to_pil(one).convert("RGB").resize((side, side), Image.Resampling.BOX) for one in fakes]
    pixels = np.concatenate([np.asarray(one) for one in small], 1)
    segments = []
    for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True):
        colours = zip(upper, lower, strict=True)
        segments += [Segment("▀", Style.from_color(*(Color.from_rgb(*one) for one in pair))) for pair in colours]
        segments.append(Segment.line())
    return Segments(segments)


def _bar(share: float) -> ProgressBar:
    return ProgressBar(total=1.0, completed=min(share, 1.0), width=BAR_WIDTH)
