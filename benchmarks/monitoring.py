"""What console, logs, TensorBoard and grids cost: their share of the processor seconds of a training.

    OMP_NUM_THREADS=1 python -m benchmarks.monitoring experiment=demo schedule.total_images=20000 threads=1

The training that the arguments name runs in this process, in a new directory, with a terminal that nobody sees, so that
the live view is drawn.  Counted are processor seconds, which other programs on the machine disturb little: those of the
parts below, each in its thread, and of the whole process from the first step to the last.  The live view takes its
share of a second however fast training is.  Evaluations and checkpoints are no reports.  A run has at least 100 grids
for its timelapse, however short it is: the share of a recipe is that of all its images.  Prints JSON.
"""

import json
import os
import pty
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from threading import Thread, local
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch

from rich.live import Live

from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.core.validation import validated
from pggan.run import train
from pggan.run.console import FRAMES_PER_SECOND
from pggan.run.events import Events
from pggan.run.grid_recorder import GridRecorder
from pggan.run.metric_accumulator import MetricAccumulator
from pggan.run.previews import Previews
from pggan.run.report import Reporter
from pggan.run.tensorboard import TensorBoardWriter

PARTS: dict[str, list[tuple[type, str]]] = {
    "means": [(MetricAccumulator, "add"), (MetricAccumulator, "reduce"), (MetricAccumulator, "recent")],
    "numbers": [(Reporter, "tick")],
    "lines": [(Reporter, "line"), (Reporter, "warn"), (Reporter, "progress"), (Reporter, "begin_phase")],
    "grids": [(Previews, "show_fakes"), (Previews, "show_reals"), (Previews, "show_final_reals")],
    "encoding of grids": [(TensorBoardWriter, "picture")],
    "timelapse": [(GridRecorder, "record")],
    "live view": [(Live, "refresh")],
}


class Meter:
    """Processor seconds of methods, each counted in the part that its thread entered first."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self.thread = local()
        self.began = self.ended = 0.0

    def watch(self, part: str, owner: type, name: str) -> None:
        """Count what the method `name` of the class `owner` takes."""
        method: Callable[..., Any] = getattr(owner, name)

        def counted(*arguments: Any, **options: Any) -> Any:
            if getattr(self.thread, "inside", False):
                return method(*arguments, **options)
            self.thread.inside, began = True, time.thread_time()
            try:
                return method(*arguments, **options)
            finally:
                self.seconds[part] += time.thread_time() - began
                self.calls[part] += 1
                self.thread.inside = False

        setattr(owner, name, counted)

    def time_steps(self) -> None:
        """Count the process from the first step to the last; what was counted before is forgotten."""
        before_step, finish = Events.before_step, Events.finish

        def first(events: Events) -> Any:
            if not self.began:
                self.seconds.clear()
                self.began = time.process_time()
            return before_step(events)

        def last(events: Events) -> None:
            self.ended = time.process_time()
            finish(events)

        setattr(Events, "before_step", first)  # noqa: B010 - mypy takes no other assignment to a method
        setattr(Events, "finish", last)  # noqa: B010


def show_nobody() -> None:
    """Make stderr a terminal whose content is thrown away."""
    screen, terminal = pty.openpty()
    os.dup2(terminal, sys.stderr.fileno())
    os.environ["TERM"] = "xterm-256color"

    def drain() -> None:
        while os.read(screen, 65536):
            pass

    Thread(target=drain, daemon=True).start()


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or "--help" in arguments:
        print(__doc__)
        return
    meter = Meter()
    for part, methods in PARTS.items():
        for owner, name in methods:
            meter.watch(part, owner, name)
    meter.time_steps()
    show_nobody()
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train.run(validated(TrainConfig, compose("train", [*arguments, f"run_dir={run_dir}"])))
        lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    total = meter.ended - meter.began
    shares = {part: round(seconds / total, 5) for part, seconds in meter.seconds.items()}
    frame = meter.seconds["live view"] / max(meter.calls["live view"], 1)
    shares["live view"] = round(frame * FRAMES_PER_SECOND, 5)
    found = {"arguments": arguments, "images": lines[-1]["images"], "ticks": len(lines), "seconds": round(total, 2)}
    print(json.dumps({**found, "shares": shares, "share": round(sum(shares.values()), 5)}, indent=1))


if __name__ == "__main__":
    main()
