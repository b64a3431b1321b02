"""How well `pggan plan calibrate=true` predicts: plans and whole short runs in turn.

    python -m benchmarks.plan --rounds 2 experiment=demo "schedule.stable_images={32: 6000}"

The pace of a busy machine changes within minutes, so a run is compared with the mean of the plans before and after it;
--cpu-time counts the time of the processor instead of the time that passes.  The runs train on noise, on as many images
as the demo has.  The seconds are those of the whole command.
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

from benchmarks.reporting import report
from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.core.validation import validated
from pggan.performance.plan.calibration import write_noise

IMAGES = 4096


class Commands:
    """Runs commands, and measures them by the clock or by the processor's time."""

    def __init__(self, cpu_time: bool) -> None:
        """Args: cpu_time: the processor's time."""
        self.cpu_time = cpu_time

    def run(self, *arguments: str) -> tuple[str, float]:
        """The output of a command, and the seconds that it takes."""
        code = "import sys, time\n"
        if self.cpu_time:  # the plan measures by the same clock, in the run that it starts too
            code += "import os\ntime.perf_counter = lambda: sum(os.times()[:4])\n"
        code += "from pggan.cli.main import main\nsys.exit(main(sys.argv[1:]))"
        start = self._now()
        command = [sys.executable, "-c", code, *arguments]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - our own
        return printed, self._now() - start

    def _now(self) -> float:
        """Seconds on the clock, or of the processor's time of all commands that have ended."""
        if not self.cpu_time:
            return time.perf_counter()
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime


def planned(commands: Commands, overrides: list[str]) -> float:
    """Seconds that a calibrated plan predicts."""
    plan = json.loads(commands.run("plan", *overrides, "calibrate=true", "json=true")[0])
    return 3600 * float(plan["total"]["hours"])


def compare(commands: Commands, overrides: list[str], folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Runs, each compared with the mean of the plans made before and after it."""
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
    """Compare plans and runs, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs")
    parser.add_argument("--cpu-time", action="store_true", help="the processor's time, on a busy machine")
    parser.add_argument("overrides", nargs="*", default=["experiment=demo"], help="of the run, as for pggan train")
    arguments = parser.parse_args()
    config = validated(TrainConfig, compose("train", arguments.overrides))
    with tempfile.TemporaryDirectory(prefix="pggan-plan-") as name:
        folder = Path(name)
        write_noise(folder / "noise", config.model.architecture(config.schedule.final_resolution, 3, 0), IMAGES)
        overrides = [*arguments.overrides, f"data.path={folder / 'noise'}"]
        rounds = list(compare(Commands(arguments.cpu_time), overrides, folder, arguments.rounds))
    report({"overrides": arguments.overrides, "cores": len(os.sched_getaffinity(0)), "rounds": rounds}, None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
