"""How well `pggan plan calibrate=true` predicts: plans and whole short runs in turn.

    python -m benchmarks.plan --rounds 2 experiment=demo "schedule.stable_images={32: 6000}"

A machine that does other things besides changes its pace within minutes, so a run is held against the mean of the plans
before and after it; --cpu-time counts what the processor works for each of them instead of the time that passes.  What
is trained on is noise, in as many images as the demo has.  The seconds are those of the whole command.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.core.validation import validated
from pggan.data.format.writer import write_pyramid

IMAGES = 4096


def write_noise(path: Path, resolution: int) -> None:
    """A pyramid of noise."""
    source = np.random.default_rng(0)
    pixels = [source.integers(0, 256, (resolution, resolution, 3), np.uint8) for _ in range(IMAGES)]
    write_pyramid(path, pixels, {"kind": "noise"})


class Commands:
    """Runs commands, and takes their time by the clock or by the processor's."""

    def __init__(self, cpu_time: bool) -> None:
        self.cpu_time = cpu_time

    def run(self, *arguments: str) -> tuple[str, float]:
        """What a command prints, and the seconds that it takes."""
        code = "import sys, time\n"
        if self.cpu_time:  # the plan takes time by the same clock, in the run that it starts too
            code += "import os\ntime.perf_counter = lambda: sum(os.times()[:4])\n"
        code += "from pggan.cli.main import main\nsys.exit(main(sys.argv[1:]))"
        start = self._now()
        command = [sys.executable, "-c", code, *arguments]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - our own
        return printed, self._now() - start

    def _now(self) -> float:
        """Seconds, of all commands that have ended if it is the processor's."""
        if not self.cpu_time:
            return time.perf_counter()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def planned(commands: Commands, overrides: list[str]) -> float:
    """Seconds that a calibrated plan predicts."""
    plan = json.loads(commands.run("plan", *overrides, "calibrate=true", "json=true")[0])
    return 3600 * float(plan["total"]["hours"])


def compare(commands: Commands, overrides: list[str], folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Runs, each held against the mean of the plans made before and after it."""
    before = planned(commands, overrides)
    for number in range(rounds):
        _, measured = commands.run("train", *overrides, f"run_dir={folder / f'run-{number}'}")
        after = planned(commands, overrides)
        yield {
            "planned_before_seconds": before,
            "measured_seconds": measured,
            "planned_after_seconds": after,
            "planned_over_measured": (before + after) / 2 / measured,
        }
        before = after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs")
    parser.add_argument("--cpu-time", action="store_true", help="of the processor, for one thread on a busy machine")
    parser.add_argument("overrides", nargs="*", default=["experiment=demo"], help="of the run, as for pggan train")
    arguments = parser.parse_args()
    config = validated(TrainConfig, compose("train", arguments.overrides))
    with tempfile.TemporaryDirectory(prefix="pggan-plan-") as name:
        folder = Path(name)
        write_noise(folder / "noise", config.schedule.final_resolution)
        rounds = list(
            compare(
                Commands(arguments.cpu_time),
                [*arguments.overrides, f"data.path={folder / 'noise'}"],
                folder,
                arguments.rounds,
            )
        )
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({"overrides": arguments.overrides, "cores": cores, "rounds": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
