"""Steps on a machine that other processes use: `python -m benchmarks.busy --threads 2 --resolution 32 --rounds 15`.

The demo's step, in turn under each policy of waiting: `default` (OpenMP's own: threads spin while they wait for each
other), `short` (they spin for a hundredth of that), `passive` (they sleep; what the trainer sets), and one thread.
First on a quiet machine, then beside a busy process per core.  `share` is the speed beside them in units of the fair
share, half of the speed before.
"""

import argparse
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import torch

from benchmarks.elastic import CPU, EMA_DECAY
from benchmarks.reporting import report
from pggan.bench.steps import phase_of
from pggan.cli.compose import compose
from pggan.config import Precision, TrainConfig
from pggan.core.batch import Reals
from pggan.core.cpu import available_cores
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup
from pggan.training.build import build_trainer
from pggan.training.compute_options import configure_process

WARMUP = 3
SPINS = {"default": "300000", "short": "3000"}  # of GNU's OpenMP: how often a thread looks before it sleeps
BUSY = [sys.executable, "-c", "while True: pass"]


def take_steps(arguments: argparse.Namespace) -> None:
    """Take a step for each line read, and print its seconds."""
    configure_process(CPU, Precision.fp32, arguments.threads)
    config = validated(TrainConfig, compose("train", ["experiment=demo"]))
    architecture = config.model.architecture(config.schedule.final_resolution, 3, labels=0)
    trainer, _ = build_trainer(config, architecture, [], ProcessGroup.single_process(CPU), check_memory=False)
    side, batch = arguments.resolution, arguments.batch
    phase, images = phase_of(side, batch), torch.rand(batch, 3, side, side) * 2 - 1
    for number, _ in enumerate(sys.stdin):
        began = time.perf_counter()
        trainer.step(phase, Reals(images, None, None), StepRng(0, number * batch, CPU), EMA_DECAY)
        print(time.perf_counter() - began, flush=True)


class Stepper:
    """A process that takes steps under one policy of waiting."""

    def __init__(self, arguments: argparse.Namespace, policy: str, threads: int) -> None:
        sizes = [f"--resolution={arguments.resolution}", f"--batch={arguments.batch}", f"--threads={threads}"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        if policy in SPINS:
            variables["GOMP_SPINCOUNT"] = SPINS[policy]
        command = [sys.executable, "-m", "benchmarks.busy", "--take-steps", *sizes]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, env=variables, stdin=pipe, stdout=pipe, text=True)  # noqa: S603

    def seconds(self) -> float:
        """The seconds of one step, taken now."""
        requests, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        requests.write("\n")
        requests.flush()
        return float(answers.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--take-steps", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.take_steps:
        take_steps(arguments)
        return
    kinds = dict.fromkeys(("default", "short", "passive"), arguments.threads) | {"one thread": 1}
    with ExitStack() as stack:
        steppers = {name: Stepper(arguments, name, threads) for name, threads in kinds.items()}
        for stepper in steppers.values():
            stack.callback(stepper.process.kill)
        found: dict[str, dict[str, float]] = {name: {} for name in steppers}
        for load in ("quiet", "busy"):
            if load == "busy":
                for _ in range(available_cores()):
                    stack.callback(subprocess.Popen(BUSY).kill)  # noqa: S603 - our own
            times: dict[str, list[float]] = {name: [] for name in steppers}
            for _ in range(WARMUP + arguments.rounds):
                for name, stepper in steppers.items():
                    times[name].append(stepper.seconds())
            for name, taken in times.items():
                found[name][load] = 1000 * median(taken[WARMUP:])
    rows: dict[str, Any] = {
        name: {f"{load}_milliseconds": round(taken, 1) for load, taken in loads.items()}
        | {"share": round(2 * loads["quiet"] / loads["busy"], 2)}
        for name, loads in found.items()
    }
    report(
        {"resolution": arguments.resolution, "batch": arguments.batch, "cores": available_cores(), "steps": rows},
        arguments.out,
    )


if __name__ == "__main__":
    main()
