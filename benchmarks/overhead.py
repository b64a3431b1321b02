"""What the code for several ranks costs when there is one: steps alone and as one rank of a launcher, in turn.

    OMP_NUM_THREADS=1 python -m benchmarks.overhead --stages 16 --batch 16 --rounds 40
    OMP_NUM_THREADS=1 python -m benchmarks.overhead --fmap-base 8192 --fmap-max 512 --stages 16 --batch 16 --rounds 10

Three variants of the same updates: `alone`, as `pggan train devices=cpu`; `launched`, as the only rank of torchrun,
which still takes part in an all-reduce of flags at every step; and `fp32`, where gradients are also copied into the
flat buffer and all-reduced over gloo, as on each of several ranks, though a run of one rank never does that.
A round is a step of each, in an order that changes.  Prints JSON: per stage the medians of seconds and of processor
seconds of a step, and how much more than `alone` a variant takes: median and quartiles of the rounds' ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch

import torch

from benchmarks.elastic import CPU, EMA_DECAY, trainer_config
from pggan.config import Precision
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.optim.reducer import AllReduceFp32
from pggan.performance.bench.steps import phase_of
from pggan.run.metric_accumulator import MetricAccumulator
from pggan.training.build import build_trainer
from pggan.training.compute_options import configure_process


class Variant:
    """A trainer, and what surrounds its steps in a run."""

    def __init__(self, arguments: argparse.Namespace, group: ProcessGroup, *, all_reduce: bool = False) -> None:
        config = trainer_config(arguments)
        architecture = config.model.architecture(max(arguments.stages), 3, num_classes=0)
        self.group = group
        self.trainer, _ = build_trainer(config, architecture, [], group, check_memory=False)
        if all_reduce:
            self.trainer.reducer, self.trainer.indices = AllReduceFp32(group), torch.arange
        self.accumulator = MetricAccumulator()

    def step(self, phase: Phase, images: torch.Tensor, number: int) -> tuple[float, float]:
        """Take a step as training does; the seconds of it, and those of the processor."""
        began, worked = time.perf_counter(), time.process_time()
        self.group.all_reduce_flags(0)
        rng = StepRng(0, number * phase.batch, CPU)
        self.accumulator.add(self.trainer.step(phase, Reals(images, None, None), rng, EMA_DECAY))
        return time.perf_counter() - began, time.process_time() - worked


def measure(arguments: argparse.Namespace, group: ProcessGroup) -> None:
    variants = {
        "alone": Variant(arguments, ProcessGroup.single_process(CPU)),
        "launched": Variant(arguments, group),
        "fp32": Variant(arguments, group, all_reduce=True),
    }
    names = list(variants)
    for stage in arguments.stages:
        phase, images = phase_of(stage, arguments.batch), torch.rand(arguments.batch, 3, stage, stage) * 2 - 1
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for number in range(arguments.rounds + 2):  # the first two are not counted
            for place in range(len(names)):
                name = names[(place + number) % len(names)]
                taken[name].append(variants[name].step(phase, images, number))
        print(
            json.dumps(row_of(stage, arguments.batch, {name: times[2:] for name, times in taken.items()})), flush=True
        )


def row_of(stage: int, batch: int, taken: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """The figures of one stage."""
    row: dict[str, Any] = {"resolution": stage, "batch": batch}
    for part, what in enumerate(("seconds", "processor_seconds")):
        times = {name: [both[part] for both in all_of] for name, all_of in taken.items()}
        row[what] = {name: round(statistics.median(all_of), 5) for name, all_of in times.items()}
        for name in list(times)[1:]:
            costs = [its / alone - 1 for its, alone in zip(times[name], times["alone"], strict=True)]
            low, middle, high = statistics.quantiles(costs)
            row[f"{name}_cost_in_{what}"] = {"median": round(middle, 4), "quartiles": [round(low, 4), round(high, 4)]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fmap-base", type=int, default=256, help="the demo's; the paper's is 8192")
    parser.add_argument("--fmap-max", type=int, default=64, help="the demo's; the paper's is 512")
    parser.add_argument("--stages", type=int, nargs="+", default=[16])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    info = rank_from_environment()
    if info is None:
        program = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        subprocess.run([*program, "-m", "benchmarks.overhead", *sys.argv[1:]], check=True)  # noqa: S603 - itself
        return
    configure_process(CPU, Precision.fp32)
    group = ProcessGroup.connect(info, CPU, 120)
    measure(arguments, group)
    group.shutdown()


if __name__ == "__main__":
    main()
