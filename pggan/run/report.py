"""Reporters: they bring averages per tick to TensorBoard, metrics.jsonl, train.log and the console.

Nothing here waits for the device between ticks.
"""

import re
import time
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray

from pggan.config import ConsoleMode
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.devices import peak_memory
from pggan.core.schedule import Phase, Schedule
from pggan.run.console import TrainingConsole
from pggan.run.eta import Eta
from pggan.run.metrics_file import MetricsFile
from pggan.run.run_dir import append_log
from pggan.sampling.images import Pixels

MAX_QUEUE = 2  # pictures that wait to be encoded: 12 MB each, seconds of work, usually minutes apart

Scores = Mapping[str, NDArray[np.float32]]  # of single images, by name


class NullReporter:
    """The reporter of ranks other than 0, which does nothing."""

    def restart(self, images: int) -> None:
        """Continue from `images` after a rollback: what was written beyond it is dropped."""

    def describe(self, pages: Mapping[str, str], hyperparameters: Mapping[str, object]) -> None:
        """Write texts about the run, by tag and in Markdown, and its hyperparameters to TensorBoard."""

    def line(self, text: str, *, always: bool = False) -> None:
        """Show a line on the console, a quiet one only if `always`, and keep it in train.log."""

    def warn(self, text: str) -> None:
        """Show a warning, which stays visible on a terminal, and keep it in train.log."""

    def alarm(self, text: str, images: int) -> None:
        """Show what goes wrong at `images` and what to do, as a warning and in TensorBoard."""

    def progress(self, images: int, phase: Phase) -> None:
        """Move the progress bars to `images`."""

    def begin_phase(self, phase: Phase, images: int, *, is_new: bool) -> None:
        """Tell that training is at `images`, at the beginning of a phase if `is_new`, or in one that is resumed."""

    def profile(self, name: str, markdown: str, images: int) -> None:
        """Tell what the recorded steps of the phase `name` spent their time on."""

    def saved(self, images: int) -> None:
        """Tell that the checkpoint of `images` is on the disk."""

    def evaluated(self, seconds: float) -> None:
        """Tell that so much of the time since the last tick was an evaluation."""

    def tick(self, images: int, phase: Phase, means: dict[str, float], scores: Scores | None = None) -> None:
        """Write the `means` since the last tick everywhere, and the distribution of the `scores` [N] to TensorBoard."""

    def picture(self, tag: str, picture: Pixels, path: Path | None, images: int) -> None:
        """Show a picture [H, W, C] in TensorBoard, and write it as the PNG file `path`, soon; training does not wait.

        An error in it is raised by the next call of this, `tick` or `flush`.
        """

    def finish(self) -> None:
        """Tell TensorBoard that the schedule has come to its end."""

    def plan_end(self, schedule: Schedule) -> None:
        """Report from now on against `schedule`, which ends elsewhere than the one before."""

    def flush(self) -> None:
        """Hand on what is held back, before a state is saved: a process killed afterwards has reported all before.

        Waits for pictures; for any thread.
        """


class Reporter(NullReporter):
    """The one place where a run's scalars, lines and pictures are written."""

    def __init__(
        self,
        run_dir: Path,
        schedule: Schedule,
        eta: Eta,
        device: torch.device,
        images: int,
        *,
        console: ConsoleMode = ConsoleMode.auto,
    ) -> None:
        """Args: eta: the time left, which every tick is told to; images: shown already."""
        self.run_dir, self.schedule, self.eta, self.device = run_dir, schedule, eta, device
        self.console = TrainingConsole(console, schedule, images)
        # One thread, so that pictures are written in their order.
        self._encoder = ThreadPoolExecutor(1, "pictures")
        self._pictures: deque[Future[None]] = deque()
        self._open(images)

    def __enter__(self) -> Self:
        self.console.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.console.__exit__()
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

        self._metrics = MetricsFile(self.run_dir / "metrics.jsonl", images)
        self._first = images + 1 if images else 0
        self._board = TensorBoardWriter(self.run_dir, self._first)
        self._tick_images, self._tick_time = images, time.monotonic()
        self.eta.restart(images, self._tick_time)

    def describe(self, pages: Mapping[str, str], hyperparameters: Mapping[str, object]) -> None:
        from pggan.run.tensorboard_plugins import chart_layout, session_start

        for tag, markdown in pages.items():
            self._board.text(tag, markdown, self._first)
        self._board.summary(chart_layout(), self._first)
        self._board.summary(session_start(hyperparameters), self._first)

    def finish(self) -> None:
        from pggan.run.tensorboard_plugins import session_end

        self._board.summary(session_end(), self.schedule.total)

    def line(self, text: str, *, always: bool = False) -> None:
        self.console.line(text, always=always)
        append_log(self.run_dir, text)

    def warn(self, text: str) -> None:
        self.console.warn(text)
        append_log(self.run_dir, text)

    def alarm(self, text: str, images: int) -> None:
        self.warn(f"Alarm: {text}")
        self._board.text("alarms", text, images)

    def progress(self, images: int, phase: Phase) -> None:
        self.console.progress(images, phase)

    def begin_phase(self, phase: Phase, images: int, *, is_new: bool) -> None:
        self.console.progress(images, phase)
        title = f"Phase {phase.index + 1} of {len(self.schedule.phases)}: {phase.name}, batch {phase.batch}"
        self.line(title if is_new else f"{title}, resumed at {images:,} images")
        if is_new:
            # The point of the first image of the phase: a run that resumes from `images` writes it again, once.
            self._board.text("phases", title, images + 1)
            self._board.scalar("schedule/growth", growth(phase), images + 1)

    def profile(self, name: str, markdown: str, images: int) -> None:
        self.line(f"Profile of {name}: in profile/, for https://ui.perfetto.dev")
        self._board.text(f"profile/{name}", markdown, images)

    def saved(self, images: int) -> None:
        self.console.note_checkpoint(images)

    def evaluated(self, seconds: float) -> None:
        self.eta.evaluated(seconds)

    def tick(self, images: int, phase: Phase, means: dict[str, float], scores: Scores | None = None) -> None:
        self._raise_of_pictures(all_but=MAX_QUEUE)
        now = time.monotonic()
        seconds_per_image = (now - self._tick_time) / max(images - self._tick_images, 1)
        self._tick_images, self._tick_time = images, now
        self.eta.observe(images, now)
        left = self.eta.seconds_left(images)
        scalars = means | {
            "schedule/resolution": phase.resolution,
            "schedule/growth": growth(phase),
            "schedule/alpha": phase.alpha,
            "schedule/batch": phase.batch,
            "schedule/learning_rate_g": phase.learning_rate_g,
            "schedule/learning_rate_d": phase.learning_rate_d,
            "speed/images_per_second": 1 / seconds_per_image,
            "speed/memory_bytes": peak_memory(self.device),
            "speed/eta_seconds": left,
            "speed/hours": self._metrics.hours,
        }
        for name, value in scalars.items():
            self._board.scalar(name, value, images)
        for name, values in (scores or {}).items():
            self._board.histogram(name.replace("scores/", "score_histogram/"), values, images)
        self._board.flush()
        record = {re.sub("^(schedule|speed|health)/", "", name): value for name, value in scalars.items()}
        self._metrics.append({"images": images, "phase": phase.name, **record})
        self.console.progress(images, phase)
        append_log(self.run_dir, self.console.tick(seconds_per_image, left, scalars))

    def picture(self, tag: str, picture: Pixels, path: Path | None, images: int) -> None:
        self._raise_of_pictures(all_but=MAX_QUEUE - 1)
        self._pictures.append(self._encoder.submit(self._board.picture, tag, picture, path, images))

    def _raise_of_pictures(self, all_but: int) -> None:
        """Wait until no more than `all_but` pictures are left to be written; raises what went wrong with one."""
        while self._pictures and (len(self._pictures) > all_but or self._pictures[0].done()):
            self._pictures.popleft().result()

    def plan_end(self, schedule: Schedule) -> None:
        self.schedule = self.eta.schedule = self.console.schedule = schedule

    def flush(self) -> None:
        for picture in self._pictures.copy():
            picture.result()
        self._board.flush()


def growth(phase: Phase) -> float:
    """Doublings of 4x4 so far; those of a fade count by its alpha."""
    return phase.resolution.bit_length() - MIN_RESOLUTION.bit_length() - 1 + phase.alpha


def without_copies(means: dict[str, float], terms_of_g: Collection[str]) -> dict[str, float]:
    """`means` without the term of G's loss that would be the loss itself, because there is no other."""
    terms = [name for name in means if name in terms_of_g]
    return {name: value for name, value in means.items() if [name] != terms}
