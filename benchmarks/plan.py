"""How well `pggan plan calibrate=true` predicts: plans and whole short runs in turn.

    python -m benchmarks.plan --rounds 2 experiment=demo "schedule.stable_images={32: 6000}"

A machine that does other things besides changes its pace within minutes, so a run is held against the mean of the plans
before and after it.  What is trained on is noise, in as many images as the demo has.  The seconds measured are those of
the whole command; those in the log leave out what it takes to start.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from pggan.cli import compose
from pggan.config import TrainConfig
from pggan.data.writer import PyramidWriter
from pggan.schema import validated

IMAGES = 4096


def write_noise(path: Path, resolution: int) -> None:
    """A pyramid of noise."""
    source = np.random.default_rng(0)
    with PyramidWriter(path, resolution, 3, {"kind": "noise"}) as writer:
        for _ in range(IMAGES):
            writer.add(source.integers(0, 256, (resolution, resolution, 3), np.uint8))


def pggan(*arguments: str) -> tuple[str, float]:
    """What a command prints, and the seconds that it takes."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "pggan", *arguments]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 - our own
    return printed, time.perf_counter() - start


def seconds_in_log(run_dir: Path) -> float:
    """From the first phase to the last line."""
    lines = (run_dir / "train.log").read_text().splitlines()
    first = next(line for line in lines if "Phase 1 of" in line)
    instants = [datetime.strptime(line[:19], "%Y-%m-%d %H:%M:%S") for line in (first, lines[-1])]
    return (instants[1] - instants[0]).total_seconds()


def planned(overrides: list[str]) -> float:
    """Seconds that a calibrated plan predicts."""
    plan = json.loads(pggan("plan", *overrides, "calibrate=true", "json=true")[0])
    return 3600 * float(plan["total"]["hours"])


def compare(overrides: list[str], folder: Path, rounds: int) -> Iterator[dict[str, Any]]:
    """Runs, each held against the mean of the plans made before and after it."""
    before = planned(overrides)
    for number in range(rounds):
        run_dir = folder / f"run-{number}"
        _, measured = pggan("train", *overrides, f"run_dir={run_dir}")
        training, after = seconds_in_log(run_dir), planned(overrides)
        yield {
            "planned_before_seconds": before,
            "measured_seconds": measured,
            "in_log_seconds": training,
            "planned_after_seconds": after,
            "planned_over_measured": (before + after) / 2 / measured,
            "planned_over_log": (before + after) / 2 / training,
        }
        before = after


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="runs")
    parser.add_argument("overrides", nargs="*", default=["experiment=demo"], help="of the run, as for pggan train")
    arguments = parser.parse_args()
    config = validated(TrainConfig, compose("train", arguments.overrides))
    with tempfile.TemporaryDirectory(prefix="pggan-plan-") as name:
        folder = Path(name)
        write_noise(folder / "noise", config.schedule.final_resolution)
        rounds = list(compare([*arguments.overrides, f"data.path={folder / 'noise'}"], folder, arguments.rounds))
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({"overrides": arguments.overrides, "cores": cores, "rounds": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
