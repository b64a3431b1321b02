"""Steps on a machine that other processes use: `python -m benchmarks.busy --spins 300000 100000 0 --rounds 30`.

OpenMP threads look for work a number of times before they sleep: the spin count of GNU's OpenMP, whose own is 300000;
with 0 (OMP_WAIT_POLICY=PASSIVE) they sleep at once.  The demo's step is taken in turn under each of them, with all
threads, and in one thread: on a quiet machine, beside a busy process per core, and beside a second training of the same
kind.  `share` is the speed beside others in units of the fair share, half of the quiet speed under OpenMP's own count.
"""

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import IO, Any, cast

import torch

from benchmarks.elastic import CPU, EMA_DECAY
from benchmarks.reporting import report
from pggan.cli.compose import compose
from pggan.config import Precision, TrainConfig
from pggan.core.batch import Reals
from pggan.core.cpu import available_cores
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup
from pggan.performance.bench.steps import phase_of
from pggan.training.build import build_trainer
from pggan.training.compute_options import configure_process

WARMUP = 3
OWN = 300_000  # the spin count of GNU's OpenMP
BUSY = [sys.executable, "-c", "while True: pass"]


def take_steps(arguments: argparse.Namespace) -> None:
    """Take a step for each line read, or without end, and print its seconds."""
    configure_process(CPU, Precision.fp32, arguments.threads)
    config = validated(TrainConfig, compose("train", ["experiment=demo"]))
    architecture = config.model.architecture(config.schedule.final_resolution, 3, num_classes=0)
    trainer, _ = build_trainer(config, architecture, [], ProcessGroup.single_process(CPU), check_memory=False)
    side, batch = arguments.resolution, arguments.batch
    phase, images = phase_of(side, batch), torch.rand(batch, 3, side, side) * 2 - 1
    for number, _ in enumerate(sys.stdin if arguments.take == "asked" else iter(int, 1)):
        began = time.perf_counter()
        trainer.step(phase, Reals(images, None, None), StepRng(0, number * batch, CPU), EMA_DECAY)
        print(time.perf_counter() - began, flush=True)


class Stepper:
    """Two processes that take steps with one spin count: one when it is asked, its twin whenever it is not stopped."""

    def __init__(self, arguments: argparse.Namespace, spins: int | None, threads: int) -> None:
        """Args: spins: None for what the trainer sets."""
        sizes = [f"--resolution={arguments.resolution}", f"--batch={arguments.batch}", f"--threads={threads}"]
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        if spins is not None:
            variables["GOMP_SPINCOUNT"] = str(spins)
        command, pipe = [sys.executable, "-m", "benchmarks.busy", *sizes], subprocess.PIPE
        asked, endless = [*command, "--take=asked"], [*command, "--take=endless"]
        self.process = subprocess.Popen(asked, env=variables, stdin=pipe, stdout=pipe, text=True)  # noqa: S603
        self.twin = subprocess.Popen(endless, env=variables, stdout=pipe, text=True)  # noqa: S603
        cast(IO[str], self.twin.stdout).readline()  # it has begun
        self.twin.send_signal(signal.SIGSTOP)

    def seconds(self) -> float:
        """The seconds of one step, taken now."""
        requests, answers = cast(IO[str], self.process.stdin), cast(IO[str], self.process.stdout)
        requests.write("\n")
        requests.flush()
        return float(answers.readline())

    @contextmanager
    def training_beside(self) -> Iterator[None]:
        """Inside, the twin takes steps."""
        self.twin.send_signal(signal.SIGCONT)
        yield
        self.twin.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        """End both processes."""
        self.process.kill()
        self.twin.kill()


def times_of(steppers: dict[str, Stepper], load: str, rounds: int) -> dict[str, float]:
    """Median seconds of a step of each of `steppers`, in turn, beside the `load`."""
    times: dict[str, list[float]] = {name: [] for name in steppers}
    with ExitStack() as stack:
        for _ in range(available_cores() if load == "busy" else 0):
            stack.callback(subprocess.Popen(BUSY).kill)  # noqa: S603 - our own
        for _ in range(WARMUP + rounds):
            for name, stepper in steppers.items():
                with ExitStack() as beside:
                    if load == "training":
                        beside.enter_context(stepper.training_beside())
                        time.sleep(0.2)  # until it is in the middle of its steps
                    times[name].append(stepper.seconds())
    return {name: median(taken[WARMUP:]) for name, taken in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--spins", type=int, nargs="*", default=[0], help="counts besides OpenMP's own and the trainer's"
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--take", choices=("asked", "endless"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.take:
        take_steps(arguments)
        return
    counts = dict.fromkeys((OWN, *arguments.spins))
    with ExitStack() as stack:
        steppers = {str(spins): Stepper(arguments, spins, arguments.threads) for spins in counts}
        steppers |= {"the trainer's": Stepper(arguments, None, arguments.threads)}
        steppers |= {"one thread": Stepper(arguments, None, 1)}
        for stepper in steppers.values():
            stack.callback(stepper.end)
        found = {load: times_of(steppers, load, arguments.rounds) for load in ("quiet", "busy", "training")}
    rows: dict[str, Any] = {
        name: {f"{load}_milliseconds": round(1000 * times[name], 1) for load, times in found.items()}
        | {f"{load}_share": round(2 * found["quiet"][str(OWN)] / found[load][name], 2) for load in ("busy", "training")}
        for name in steppers
    }
    about = {"resolution": arguments.resolution, "batch": arguments.batch, "cores": available_cores()}
    report({**about, "threads": arguments.threads, "steps": rows}, arguments.out)


if __name__ == "__main__":
    main()
