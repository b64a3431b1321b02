"""What a training run adds to its bare steps: `python -m benchmarks.loop --resolutions 16 32 --batches 8 4`.

In turns, in one process: bare steps on a batch of images that stays on the device; short runs of `pggan train` that
draw no grids and save nothing; and short runs that do both at every tick.  From the first two follows what reading
data, drawing numbers, averaging and ticking cost per step, at ticks far more frequent than usual; from the last two
what one grid and one checkpoint cost together.  That is spread over as many images as lie between two of them by the
default configuration (the smaller of both intervals).  Prints JSON with a row per resolution, with the paper's widths
unless `key=value` (before the options) says otherwise; `overhead_percent` is what a run takes beyond its bare steps.

`--processor-time` takes the time of all threads on the processor instead of the clock's, for runs on a CPU that others
use, too: waiting for the disk is not in it, what the writer of checkpoints calculates is.
"""

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.reporting import report
from pggan.checkpoints.interval import images_between, seconds_between
from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.config.describe import versions
from pggan.core.batch import Reals
from pggan.core.devices import choose_device, synchronize
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.data.writer import write_pyramid
from pggan.performance.bench.variants import TrainerVariant
from pggan.run.train import run
from pggan.training.compute_options import configure_process
from pggan.training.device_rates import hardware

NEVER = 10**9  # images
IMAGES = 64


class Measurement:
    """One resolution, measured in three ways."""

    def __init__(
        self,
        folder: Path,
        resolution: int,
        batch: int,
        steps: int,
        overrides: Sequence[str] = (),
        *,
        devices: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: folder: empty, for data and runs; steps: of one tick; overrides: key=value, of `pggan train`."""
        self.folder, self.resolution, self.batch, self.steps = folder, resolution, batch, steps
        self.clock = clock
        random = np.random.default_rng(0)
        pixels = [random.integers(0, 256, (resolution, resolution, 3), dtype=np.uint8) for _ in range(IMAGES)]
        write_pyramid(folder / "data", pixels, {"kind": "random"})
        self.overrides = [
            f"data.path={folder / 'data'}",
            f"schedule.first_resolution={resolution}",
            f"schedule.final_resolution={resolution}",
            f"schedule.stable_images={NEVER}",
            "evaluation.metrics=[]",
            f"schedule.batch={batch}",
            f"devices={devices}",
            *overrides,
        ]
        self.usual = self.config()
        self.device = device = choose_device(devices)
        configure_process(device, self.usual.precision)
        architecture = self.usual.model.architecture(resolution, channels=3, num_classes=0)
        self.bare = TrainerVariant(self.usual, architecture, device, log=print)
        self.images = torch.rand(batch, 3, resolution, resolution, device=device) * 2 - 1
        self.taken = self.runs = 0

    def config(self, *overrides: str) -> TrainConfig:
        """The configuration of a run at this one resolution."""
        return validated(TrainConfig, compose("train", [*self.overrides, *overrides]))

    def bare_seconds(self, ticks: int) -> list[float]:
        """Seconds per step of every tick of bare steps."""
        phase, found = self.usual.schedule.build().phases[0], []
        for _ in range(ticks):
            start = self.clock()
            for _ in range(self.steps):
                rng = StepRng(0, self.taken * self.batch, self.device)
                self.bare.step(phase, Reals(self.images, None, None), rng)
                self.taken += 1
            synchronize(self.device)
            found.append((self.clock() - start) / self.steps)
        return found

    def run_seconds(self, ticks: int, *, saving: bool) -> list[float]:
        """Seconds per step of every tick but the first of a new run; `saving`: with a grid and a checkpoint in each."""
        tick, events = self.steps * self.batch, self.steps * self.batch if saving else NEVER
        with tempfile.TemporaryDirectory(dir=self.folder) as run_dir:
            config = self.config(
                f"run_dir={run_dir}",
                f"schedule.total_images={(ticks + 1) * tick}",
                f"monitor.tick_images={tick}",
                f"monitor.grid_images={events}",
                f"checkpoint.every_images={2 * events}",
                "checkpoint.every_minutes=null",
            )
            with redirect_stderr(StringIO()), patch("time.monotonic", self.clock):  # by which ticks are timed
                code = run(config)
            if code:
                raise SystemExit(code)  # interrupted
            lines = (Path(run_dir) / "metrics.jsonl").read_text().splitlines()
        return [self.batch / json.loads(line)["images_per_second"] for line in lines[1:]]

    def compare(self, rounds: int, ticks: int) -> dict[str, Any]:
        """A row of results: turns of all three ways, with the events spread over the usual intervals."""
        self.bare_seconds(1)
        bare, plain, saving = [], [], []
        for _ in range(rounds):
            bare += self.bare_seconds(ticks)
            plain += self.run_seconds(ticks, saving=False)
            saving += self.run_seconds(ticks, saving=True)
        step, loop = median(bare), median(plain)
        event = max(median(saving) - loop, 0) * self.steps
        keep = self.usual.checkpoint
        seconds = seconds_between(keep)
        apart = min(self.usual.monitor.grid_images, images_between(keep))
        if seconds < math.inf:
            apart = min(apart, round(seconds * self.batch / step))
        whole = loop + event * self.batch / apart
        return {
            "resolution": self.resolution,
            "batch": self.batch,
            "bare_milliseconds_per_step": 1000 * step,
            "bare_quartiles": [1000 * float(np.quantile(bare, q)) for q in (0.25, 0.75)],
            "run_milliseconds_per_step": 1000 * loop,
            "run_quartiles": [1000 * float(np.quantile(plain, q)) for q in (0.25, 0.75)],
            "seconds_per_grid_and_checkpoint": event,
            "images_between_them": apart,
            "bare_images_per_second": self.batch / step,
            "run_images_per_second": self.batch / whole,
            "overhead_percent": 100 * (whole / step - 1),
            "ticks": len(bare),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resolutions", type=int, nargs="+", default=[16, 32, 64])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 16, 4], help="one for every resolution")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ticks", type=int, default=6, help="of every way in a round")
    parser.add_argument("--steps", type=int, default=1, help="per tick; more where they are short")
    parser.add_argument("--devices", default="auto")
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as for `pggan train`")
    arguments = parser.parse_args()
    rows = []
    for resolution, batch in zip(arguments.resolutions, arguments.batches, strict=True):
        with tempfile.TemporaryDirectory(prefix="pggan-loop-") as folder:
            measurement = Measurement(
                Path(folder),
                resolution,
                batch,
                arguments.steps,
                arguments.overrides,
                devices=arguments.devices,
                clock=time.process_time if arguments.processor_time else time.monotonic,
            )
            rows.append(measurement.compare(arguments.rounds, arguments.ticks))
    clock = "processor" if arguments.processor_time else "wall"
    found = {
        "clock": clock,
        "hardware": hardware(choose_device(arguments.devices)),
        "versions": versions(),
        "stages": rows,
    }
    report(found, arguments.out)


if __name__ == "__main__":
    main()
