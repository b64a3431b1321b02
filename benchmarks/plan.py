"""How well `pggan plan calibrate=true` predicts: a whole short run is planned, then trained, in turn.

    python -m benchmarks.plan --rounds 2 experiment=demo schedule.stable_images=4000

What is trained on is made on the spot: noise, in as many images as the demo has.  The seconds measured are those of the
whole command, from its start to its end; those in the log leave out what it takes to start.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
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


def compare(overrides: list[str], folder: Path, number: int) -> dict[str, Any]:
    """One plan and one run."""
    given = [*overrides, f"data.path={folder / 'noise'}"]
    plan, planning = pggan("plan", *given, "calibrate=true", "json=true")
    predicted = json.loads(plan)["total"]["hours"] * 3600
    run_dir = folder / f"run-{number}"
    _, measured = pggan("train", *given, f"run_dir={run_dir}")
    training = seconds_in_log(run_dir)
    return {
        "predicted_seconds": predicted,
        "measured_seconds": measured,
        "in_log_seconds": training,
        "predicted_over_measured": predicted / measured,
        "predicted_over_log": predicted / training,
        "planning_seconds": planning,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2, help="plans and runs, in turn")
    parser.add_argument("overrides", nargs="*", default=["experiment=demo"], help="of the run, as for pggan train")
    arguments = parser.parse_args()
    config = validated(TrainConfig, compose("train", arguments.overrides))
    with tempfile.TemporaryDirectory(prefix="pggan-plan-") as name:
        folder = Path(name)
        write_noise(folder / "noise", config.schedule.final_resolution)
        rounds = [compare(arguments.overrides, folder, number) for number in range(arguments.rounds)]
    cores = len(os.sched_getaffinity(0))
    print(json.dumps({"overrides": arguments.overrides, "cores": cores, "rounds": rounds}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
