"""What elastic training costs: steps with `elastic=true` and without, in turn, on the same processes, one core each.

    python -m benchmarks.elastic --processes 2 --fmap-base 8192 --fmap-max 512 --stages 8 16 32 --batches 16 64

    python -m benchmarks.elastic --schedule official_1gpu --fmap-base 8192 --fmap-max 512 --stages 4 8 16 32 64

Prints JSON: per stage the medians of seconds per step and of seconds of processor time, which a busy machine changes
less, and how much more than plain steps elastic ones take; `passes` are plain steps in passes as small as the shards.
With `--schedule`, an experiment, its batches are taken, and a last line says what all its images at these stages cost.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch
os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # as the command line does

import torch

from pggan.bench.steps import phase_of
from pggan.bench.variants import ADAM, DECAY
from pggan.cli.compose import compose
from pggan.config import Precision, TrainConfig
from pggan.core.architecture import Architecture, Resampling
from pggan.core.batch import Reals
from pggan.core.devices import choose_compute, set_up
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.losses.logistic import Logistic
from pggan.networks.numerics import ComputeOptions
from pggan.optim.batch_partition import BatchPartition
from pggan.optim.build_reducer import build_reducer
from pggan.optim.state import new_state
from pggan.training.step import Stepper

CPU = torch.device("cpu")
WAYS = ("plain", "passes", "elastic")


def architecture_of(arguments: argparse.Namespace) -> Architecture:
    return Architecture(
        resolution=max(arguments.stages),
        channels=3,
        labels=0,
        latent_size=min(arguments.fmap_base, arguments.fmap_max),
        fmap_base=arguments.fmap_base,
        fmap_decay=1.0,
        fmap_max=arguments.fmap_max,
        stddev_group=4,
        resampling=Resampling.fused,
    )


def phases_of(arguments: argparse.Namespace) -> tuple[Phase, ...]:
    """Those of the experiment that `--schedule` names."""
    config = validated(TrainConfig, compose("train", [f"experiment={arguments.schedule}"]))
    return config.schedule.build().phases


def batches_of(arguments: argparse.Namespace, stage: int) -> list[int]:
    if arguments.schedule is None:
        return list(arguments.batches)
    return sorted({phase.batch for phase in phases_of(arguments) if phase.resolution == stage})


def stepper_of(arguments: argparse.Namespace, group: ProcessGroup, compute: ComputeOptions, way: str) -> Stepper:
    partition = BatchPartition(group.rank, group.world_size, 4, way == "elastic", None, arguments.shards)
    cut = replace(partition, elastic=way != "plain")
    sizes = {
        (stage, batch): cut.micro_batch_size(batch)
        for stage in arguments.stages
        for batch in batches_of(arguments, stage)
    }
    state = new_state(architecture_of(arguments), ADAM, 0, CPU)
    return Stepper(
        state,
        Logistic(gamma=1.0, reg_interval=1),
        compute,
        record=False,
        log=print,
        micro_batches={key: size for key, size in sizes.items() if size is not None},
        exchange=build_reducer({"name": "dense"}, state, ADAM, group=group, partition=partition),
        rows=lambda batch: torch.from_numpy(partition.indices(batch)),
    )


def measure(arguments: argparse.Namespace, group: ProcessGroup) -> list[dict[str, Any]]:
    config = validated(TrainConfig, compose("train", []))
    compute = choose_compute(Precision.fp32, config.compute, CPU)
    steppers = {way: stepper_of(arguments, group, compute, way) for way in WAYS}
    rows = []
    for stage in arguments.stages:
        for batch in batches_of(arguments, stage):
            phase = phase_of(stage, batch)
            walls: dict[str, list[float]] = {name: [] for name in WAYS}
            works: dict[str, list[float]] = {name: [] for name in WAYS}
            for number in range(arguments.rounds + 1):  # the first is not counted
                for name, stepper in steppers.items():
                    images = torch.rand(batch // group.world_size, 3, stage, stage) * 2 - 1
                    group.all_gather_object("ready")
                    began, worked = time.perf_counter(), time.process_time()
                    stepper.step(phase, Reals(images, None, None), StepRng(0, number * batch, CPU), DECAY)
                    group.all_gather_object("done")
                    walls[name].append(time.perf_counter() - began)
                    works[name].append(time.process_time() - worked)
            row: dict[str, Any] = {"resolution": stage, "batch": batch}
            for what, taken in (("seconds", walls), ("processor_seconds", works)):
                medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
                row[what] = {name: round(value, 4) for name, value in medians.items()}
                for way in WAYS[1:]:
                    row[f"{way}_cost_in_{what}"] = round(medians[way] / medians["plain"] - 1, 3)
            rows.append(row)
            if group.is_main:
                print(json.dumps(row), flush=True)
    return rows


def whole(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the images of the schedule take, all stages together."""
    hours = dict.fromkeys(WAYS, 0.0)
    for phase in phases_of(arguments):
        for row in rows:
            if (phase.resolution, phase.batch) == (row["resolution"], row["batch"]):
                for way, seconds in row["processor_seconds"].items():
                    hours[way] += (phase.end - phase.start) / phase.batch * seconds / 3600
    cost = round(hours["elastic"] / hours["plain"] - 1, 3)
    rounded = {way: round(value, 1) for way, value in hours.items()}
    return {"schedule": arguments.schedule, "processor_hours": rounded, "elastic_cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--fmap-base", type=int, default=256, help="the demo's; the paper's is 8192")
    parser.add_argument("--fmap-max", type=int, default=64, help="the demo's; the paper's is 512")
    parser.add_argument("--stages", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--schedule", help="an experiment, such as official_1gpu, instead of --batches")
    parser.add_argument("--shards", type=int, default=4, help="workers.shards")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    place = rank_from_environment()
    if place is None and arguments.processes > 1:
        program = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        subprocess.run([*program, f"--nproc-per-node={arguments.processes}", *sys.argv], check=True)  # noqa: S603 - itself
        return
    set_up(CPU, Precision.fp32)
    group = ProcessGroup.single_process(CPU) if place is None else ProcessGroup.connect(place, CPU, 120)
    rows = measure(arguments, group)
    if arguments.schedule is not None and group.is_main:
        print(json.dumps(whole(arguments, rows)))
    group.shutdown()


if __name__ == "__main__":
    main()
