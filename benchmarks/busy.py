"""Steps on a machine that other processes use: `python -m benchmarks.busy --spins 300000 100000 0 --rounds 30`.

OpenMP threads look for work a number of times before they sleep: the spin count of GNU's OpenMP, whose own is 300000;
with 0 (OMP_WAIT_POLICY=PASSIVE) they sleep at once.  Linux runs a thread for a time slice before another one's turn;
the trainer asks for a short one.  The demo's step is taken in turn under each spin count with usual time slices, as the
trainer takes it, in one thread, and by a rank of one thread per core (`devices=cpu:2`): on a quiet machine, beside a
busy process per core, and beside a second training of the same kind, all in turn in every round.  `share` is the speed
beside others in units of the fair share, half of the quiet speed under OpenMP's own count, or for the ranks half of
their own.  Two processes of one setting differ by some percent, so `--processes 6 --loads quiet` shows smaller
differences: figures are medians of the processes, which take their steps in a random order.  `--command COMMAND ...`,
the last option, times whole runs of a command instead, quiet and beside a busy process per core.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import IO, cast

import torch

from benchmarks.elastic import CPU, EMA_DECAY
from benchmarks.reporting import report
from pggan.cli.compose import compose
from pggan.config import Precision, TrainConfig
from pggan.core.batch import Reals
from pggan.core.cpu import available_cores, set_time_slice
from pggan.core.rng import StepRng
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.performance.bench.steps import phase_of
from pggan.training.build import build_trainer
from pggan.training.compute_options import configure_process

WARMUP = 3
OWN = 300_000  # the spin count of GNU's OpenMP
LOADS = ("quiet", "busy", "training")
RANKS = "ranks of one thread"
BUSY = [sys.executable, "-c", "while True: pass"]


def take_steps(arguments: argparse.Namespace) -> None:
    """Take a step for each line read, or without end, and print its seconds."""
    configure_process(CPU, Precision.fp32, arguments.threads)
    if arguments.usual_slices:
        set_time_slice(0)
    config = validated(TrainConfig, compose("train", ["experiment=demo"]))
    architecture = config.model.architecture(config.schedule.final_resolution, 3, num_classes=0)
    info, side, batch = rank_from_environment(), arguments.resolution, arguments.batch
    group = ProcessGroup.single_process(CPU) if info is None else ProcessGroup.connect(info, CPU, 120)
    phase = phase_of(side, batch)
    trainer, _ = build_trainer(config, architecture, [phase], group, check_memory=False)
    images = torch.rand(batch // group.world_size, 3, side, side) * 2 - 1
    for number, _ in enumerate(sys.stdin if arguments.take == "asked" else iter(int, 1)):
        began = time.perf_counter()
        trainer.step(phase, Reals(images, None, None), StepRng(0, number * batch, CPU), EMA_DECAY)
        print(time.perf_counter() - began, flush=True)


def variables_of_ranks(count: int) -> list[dict[str, str]]:
    """What a launcher of `count` ranks on this machine sets for each; nothing for a process that is alone."""
    if count == 1:
        return [{}]
    with socket.create_server(("localhost", 0)) as found:
        port = found.getsockname()[1]
    shared = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    network = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}
    return [
        {name: str(value) for name, value in {**shared, "RANK": rank, "LOCAL_RANK": rank}.items()} | network
        for rank in range(count)
    ]


class Others:
    """Processes that are stopped, but for the times inside `running`."""

    def __init__(self, processes: list[subprocess.Popen[str]]) -> None:
        self.processes = processes
        self.send_signal(signal.SIGSTOP)

    def send_signal(self, number: int) -> None:
        """Send a signal to all."""
        for process in self.processes:
            process.send_signal(number)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, they run."""
        self.send_signal(signal.SIGCONT)
        time.sleep(0.2)  # until they are in the middle of their work
        yield
        self.send_signal(signal.SIGSTOP)


class Stepper:
    """A training whose ranks take a step together when they are asked, and its twin, which takes steps without end."""

    def __init__(
        self, arguments: argparse.Namespace, spins: int | None, threads: int, ranks: int = 1, *options: str
    ) -> None:
        """Args: spins: None for what the trainer sets; threads: of each rank; options: of the command of a rank."""
        sizes = [f"--resolution={arguments.resolution}", f"--batch={arguments.batch}", f"--threads={threads}"]
        self.command, self.ranks = [sys.executable, "-m", "benchmarks.busy", *sizes, *options], ranks
        self.variables = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
        if spins is not None:
            self.variables["GOMP_SPINCOUNT"] = str(spins)
        self.started: list[subprocess.Popen[str]] = []
        self.processes = self.start("asked")

    def start(self, take: str) -> list[subprocess.Popen[str]]:
        """Start the ranks of one training."""
        pipe, command = subprocess.PIPE, [*self.command, f"--take={take}"]
        processes = [
            subprocess.Popen(command, env={**self.variables, **own}, stdin=pipe, stdout=pipe, text=True)  # noqa: S603
            for own in variables_of_ranks(self.ranks)
        ]
        self.started += processes
        return processes

    @cached_property
    def twin(self) -> Others:
        """The twin, when it has begun."""
        processes = self.start("endless")
        for process in processes:
            cast(IO[str], process.stdout).readline()
        return Others(processes)

    def seconds(self) -> float:
        """The seconds of one step, taken now: those of the slowest rank."""
        for process in self.processes:
            requests = cast(IO[str], process.stdin)
            requests.write("\n")
            requests.flush()
        return max(float(cast(IO[str], process.stdout).readline()) for process in self.processes)

    def end(self) -> None:
        """End all processes."""
        end(self.started)


class Command:
    """A command, which is run to its end when it is asked."""

    def __init__(self, words: list[str]) -> None:
        self.words = words

    def seconds(self) -> float:
        """The seconds of one run, taken now; raises CalledProcessError when it fails."""
        began = time.perf_counter()
        subprocess.run(self.words, stdout=subprocess.DEVNULL, check=True)  # noqa: S603 - the user's own
        return time.perf_counter() - began


def end(processes: list[subprocess.Popen[str]]) -> None:
    """End processes, and close their pipes."""
    for process in processes:
        process.kill()
        process.communicate()


def beside(load: str, stepper: Stepper | Command, busy: Others) -> AbstractContextManager[None]:
    """A context in which the others of a load run."""
    if load == "training":
        return cast(Stepper, stepper).twin.running()
    return busy.running() if load == "busy" else nullcontext()


def times_of(
    steppers: Mapping[str, Sequence[Stepper | Command]], loads: Sequence[str], rounds: int, warmup: int = 0
) -> dict[str, dict[str, list[float]]]:
    """Median seconds of a step beside each of `loads` by each process of each of `steppers`, all in turn."""
    processes = [(name, number, stepper) for name, same in steppers.items() for number, stepper in enumerate(same)]
    times: dict[tuple[str, str, int], list[float]] = {}
    with ExitStack() as stack:
        busy = Others([subprocess.Popen(BUSY, text=True) for _ in range(available_cores())])  # noqa: S603 - our own
        stack.callback(end, busy.processes)
        for round_number in range(warmup + rounds):
            random.Random(round_number).shuffle(processes)  # noqa: S311 - an order, no secret
            for load in loads:
                for name, number, stepper in processes:
                    with beside(load, stepper, busy):
                        times.setdefault((load, name, number), []).append(stepper.seconds())

    def of_processes(load: str, name: str) -> list[float]:
        return [median(times[load, name, number][warmup:]) for number in range(len(steppers[name]))]

    return {load: {name: of_processes(load, name) for name in steppers} for load in loads}


def rows_of(found: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, float | list[float]]]:
    """Of each stepper, milliseconds beside every load, and the speed beside others in units of the fair share."""
    rows: dict[str, dict[str, float | list[float]]] = {}
    for name in next(iter(found.values())):
        rows[name] = {f"{load}_milliseconds": in_milliseconds(median(times[name])) for load, times in found.items()}
        for load, times in found.items():
            if len(times[name]) > 1:
                rows[name][f"{load}_milliseconds_of_processes"] = [in_milliseconds(taken) for taken in times[name]]
            if load != "quiet" and "quiet" in found:
                own = name if name == RANKS or str(OWN) not in found["quiet"] else str(OWN)
                rows[name][f"{load}_share"] = round(2 * median(found["quiet"][own]) / median(times[name]), 2)
    return rows


def in_milliseconds(seconds: float) -> float:
    """Seconds as milliseconds, to a tenth."""
    return round(1000 * seconds, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--resolution", type=int, default=32)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=available_cores())
    parser.add_argument("--ranks", type=int, default=available_cores())
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--spins", type=int, nargs="*", default=[0], help="counts besides OpenMP's own and the trainer's"
    )
    parser.add_argument("--processes", type=int, default=1, help="of each setting")
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=LOADS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--command", nargs=argparse.REMAINDER, help="time this command; the last option")
    parser.add_argument("--usual-slices", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--take", choices=("asked", "endless"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.take:
        take_steps(arguments)
        return
    if arguments.command:
        found = times_of({"command": [Command(arguments.command)]}, ("quiet", "busy"), arguments.rounds)
        report({"command": arguments.command, "cores": available_cores(), "times": rows_of(found)}, arguments.out)
        return
    counts = dict.fromkeys((OWN, *arguments.spins))
    with ExitStack() as stack:

        def start(spins: int | None, threads: int = arguments.threads, ranks: int = 1, *options: str) -> list[Stepper]:
            same = [Stepper(arguments, spins, threads, ranks, *options) for _ in range(arguments.processes)]
            for stepper in same:
                stack.callback(stepper.end)
            return same

        usual = arguments.threads, 1, "--usual-slices"
        steppers = {str(spins): start(spins, *usual) for spins in counts}
        steppers |= {"the trainer's spins": start(None, *usual), "the trainer's": start(None)}
        steppers |= {"one thread": start(None, 1)}
        steppers |= {RANKS: start(None, 1, arguments.ranks)} if arguments.ranks > 1 else {}
        found = times_of(steppers, arguments.loads, arguments.rounds, WARMUP)
    about = {"resolution": arguments.resolution, "batch": arguments.batch, "cores": available_cores()}
    about |= {"threads": arguments.threads, "ranks": arguments.ranks, "processes": arguments.processes}
    report({**about, "steps": rows_of(found)}, arguments.out)


if __name__ == "__main__":
    main()
