"""The numbers, lines and pictures of a run, written to the console, train.log, metrics.jsonl and TensorBoard.

Nothing here waits for the device between ticks.
"""

import re
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ReduceOp

from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.devices import peak_memory
from pggan.core.schedule import Course, Phase
from pggan.distributed.process_group import ProcessGroup
from pggan.run.console import TrainingConsole
from pggan.run.eta import Eta
from pggan.run.run_dir import MetricsFile, append_log
from pggan.run.tensorboard import Board
from pggan.sampling.images import Pixels, save_png

MAX_QUEUE = 2  # pictures that wait to be encoded: 12 MB each, seconds of work, usually minutes apart
COUNTED = "/skipped"  # names that end so are summed instead of averaged
PEAKED = "/gradient_norm"  # names that end so also get a maximum
PEAK = "_max"  # what the name of that maximum has at its end
RECENT = 64  # updates whose values are kept one by one

Scores = Mapping[str, NDArray[np.float32]]  # of single images, by name
NamesAndSizes = tuple[tuple[str, int], ...]


class MetricAccumulator:
    """Running means of named tensors, kept on the device until they are asked for."""

    def __init__(self) -> None:
        # By the names and sizes that came together: sums and maxima, number by number, and how often they came.
        self._running: dict[NamesAndSizes, tuple[Tensor, Tensor]] = {}
        self._times: Counter[NamesAndSizes] = Counter()
        self._recent: deque[tuple[NamesAndSizes, Tensor]] = deque(maxlen=RECENT)

    def add(self, named: dict[str, Tensor]) -> None:
        """Add tensors of any shape; a name need not come every time."""
        names = tuple((name, values.numel()) for name, values in named.items())
        # One operation for all of them: on a GPU each takes as long to launch as a hundred numbers to add.
        flat = torch.cat([values.flatten().float() for values in named.values()])
        if names in self._running:
            sums, peaks = self._running[names]
            sums.add_(flat)
            torch.maximum(peaks, flat, out=peaks)
        else:
            self._running[names] = flat.clone(), flat.clone()
        self._times[names] += 1
        self._recent.append((names, flat))

    def recent(self, prefix: str) -> dict[str, NDArray[np.float32]]:
        """The values [N] on this rank, one by one, of names with `prefix` in the last updates; waits for the device."""
        found: dict[str, list[Tensor]] = {}
        for names, flat in self._recent:
            for (name, _), values in zip(names, torch.split(flat, [size for _, size in names]), strict=True):
                if name.startswith(prefix):
                    found.setdefault(name, []).append(values)
        return {name: torch.cat(values).cpu().numpy() for name, values in found.items()}

    def reduce(self, group: ProcessGroup) -> dict[str, float]:
        """The means (sums, maxima) over all ranks since the last call; waits for the device."""
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        peaks: dict[str, Tensor] = {}
        for names, running in self._running.items():
            of_names = (torch.split(flat, [size for _, size in names]) for flat in running)
            for (name, size), values, largest in zip(names, *of_names, strict=True):
                sums[name] = sums[name] + values.sum() if name in sums else values.sum()
                counts[name] = counts.get(name, 0) + size * self._times[names]
                if name.endswith(PEAKED):
                    peak = largest.max()
                    peaks[name + PEAK] = torch.maximum(peaks.get(name + PEAK, peak), peak)
        self.__init__()  # type: ignore[misc]  # forgets everything added
        if not sums:
            return {}
        totals = group.all_reduce(torch.stack(list(sums.values()))).tolist()
        all_counts = group.all_reduce(torch.tensor(list(counts.values()))).tolist()
        highest = group.all_reduce(torch.stack(list(peaks.values())), ReduceOp.MAX).tolist() if peaks else []
        means = {
            name: total / (group.world_size if name.endswith(COUNTED) else count)
            for name, total, count in zip(sums, totals, all_counts, strict=True)
        }
        return means | dict(zip(peaks, highest, strict=True))


class TimeBreakdown:
    """The seconds that training waits for data, takes steps, and does all else, since `shares` was asked for."""

    def __init__(self) -> None:
        self._seconds = {"data": 0.0, "step": 0.0, "overhead": 0.0}
        self._began = time.perf_counter()

    def end(self, part: str, *, data: float = 0.0) -> None:
        """Count the time since the last call for `part`, but the seconds of `data` in it for the data."""
        now = time.perf_counter()
        self._seconds[part] += now - self._began - data
        self._seconds["data"] += data
        self._began = now

    def shares(self) -> dict[str, float]:
        """The share of each part, 0 to 1, by its tag; counting starts anew."""
        total = sum(self._seconds.values())
        shares = {f"speed/{part}_share": seconds / total for part, seconds in self._seconds.items()} if total else {}
        self._seconds = dict.fromkeys(self._seconds, 0.0)
        return shares


class NullReporter:
    """The reporter of ranks other than 0: it takes every call of a Reporter, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Reporter:
    """The one place where a run's scalars, lines and pictures are written; a context."""

    def __init__(self, run_dir: Path, course: Course, eta: Eta, images: int, console: str) -> None:
        """Continue the files of the run from `images`; what was written beyond it is dropped."""
        self.run_dir, self.course, self.eta = run_dir, course, eta
        self.console = TrainingConsole(console, course, images)
        self.board = Board(run_dir, images + 1 if images else 0)
        self._metrics = MetricsFile(run_dir / "metrics.jsonl", images)
        self._encoder = ThreadPoolExecutor(1, "pictures")  # one thread, so that pictures are written in their order
        self._pictures: deque[Future[None]] = deque()
        self._tick_images, self._tick_time = images, time.monotonic()

    def __enter__(self) -> Self:
        self.console.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.console.__exit__()
        at_once = kind is not None and not issubclass(kind, Exception)
        self._encoder.shutdown(wait=not at_once, cancel_futures=at_once)
        with nullcontext() if kind is None else suppress(Exception):  # a full disk may be why the block failed
            if not at_once:
                self.flush()
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

    def begin_phase(self, phase: Phase, images: int, *, is_new: bool) -> None:
        """Tell that training is at `images`, at the beginning of a phase if `is_new`, or in one that is resumed."""
        self.console.progress(images, phase)
        title = f"Phase {phase.index + 1} of {len(self.course.schedule.phases)}: {phase.name}, batch {phase.batch}"
        self.line(title if is_new else f"{title}, resumed at {images:,} images")
        if is_new:
            # The point of the first image of the phase: a run that resumes from `images` writes it again, once.
            self.board.add_text("phases", title, images + 1)
            self.board.add_scalar("schedule/growth", growth(phase), images + 1)

    def progress(self, images: int, phase: Phase) -> None:
        """Move the progress bars to `images`."""
        self.console.progress(images, phase)

    def evaluated(self, seconds: float) -> None:
        """Tell that so much of the time since the last tick was an evaluation."""
        self.eta.evaluated(seconds)

    def saved(self, images: int) -> None:
        """Tell that the checkpoint of `images` is on the disk."""
        self.console.note_checkpoint(images)

    def tick(self, images: int, phase: Phase, means: dict[str, float], scores: Scores, device: torch.device) -> None:
        """Write the `means` since the last tick everywhere, and the distribution of the `scores` [N] to TensorBoard."""
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
            "speed/memory_bytes": peak_memory(device),
            "speed/eta_seconds": left,
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
        append_log(self.run_dir, self.console.tick(seconds_per_image, left, scalars))

    def picture(self, tag: str, picture: Pixels, path: Path | None, images: int) -> None:
        """Show a picture [H, W, C] in TensorBoard, and write it as the PNG file `path`, soon; training does not wait.

        An error in it is raised by the next call of this, `tick` or `flush`.
        """
        self._raise_of_pictures(all_but=MAX_QUEUE - 1)
        self._pictures.append(self._encoder.submit(self._write_picture, tag, picture, path, images))

    def _write_picture(self, tag: str, picture: Pixels, path: Path | None, images: int) -> None:
        if path is not None:
            save_png(picture, path)
        shown = picture if picture.shape[2] in (3, 4) else picture[:, :, :1]
        self.board.add_image(tag, shown, images, dataformats="HWC")

    def _raise_of_pictures(self, all_but: int) -> None:
        """Wait until no more than `all_but` pictures are left to be written; raises what went wrong with one."""
        while self._pictures and (len(self._pictures) > all_but or self._pictures[0].done()):
            self._pictures.popleft().result()

    def flush(self) -> None:
        """Hand on what is held back, before a state is saved: a process killed afterwards has reported all before.

        Waits for pictures; for any thread.
        """
        for picture in self._pictures.copy():
            picture.result()
        self.board.flush()


def growth(phase: Phase) -> float:
    """Doublings of 4x4 so far; the doubling of a fade counts by its alpha."""
    return phase.resolution.bit_length() - MIN_RESOLUTION.bit_length() - 1 + phase.alpha
