"""What elastic training costs: steps with `elastic=true` and without, in turn, on the same ranks, one core each.

    python -m benchmarks.elastic --ranks 2 --fmap-base 8192 --fmap-max 512 --stages 8 16 32 --batches 16 64

    python -m benchmarks.elastic --schedule official_1gpu --fmap-base 8192 --fmap-max 512 --stages 4 8 16 32 64

Prints JSON: per stage the medians of seconds per step and of seconds of processor time, which a busy machine changes
less, and how much more than plain steps elastic ones take; `passes` are plain steps in micro-batches as small as the
elastic chunks.  With `--schedule`, a file of configs/schedule/, its batches are taken, and a last line says what all
its images at these stages cost.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch

import torch

from pggan.cli.compose import compose
from pggan.config import DistributedConfig, ModelConfig, Precision, TrainConfig, TrainerConfig
from pggan.core.architecture import Resampling
from pggan.core.batch import Reals
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.validation import validated
from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.optim.batch_partition import BatchPartition
from pggan.performance.bench.steps import phase_of
from pggan.training.build import build_trainer
from pggan.training.compute_options import configure_process
from pggan.training.step import Trainer

CPU = torch.device("cpu")
VARIANTS = ("plain", "passes", "elastic")
EMA_DECAY = 0.999


def trainer_config(arguments: argparse.Namespace, *, elastic: bool = False) -> TrainerConfig:
    """The paper's networks, as narrow as the arguments say, with a loss that has a penalty in every step."""
    return TrainerConfig(
        model=ModelConfig(
            latent_size=None,
            fmap_base=arguments.fmap_base,
            fmap_decay=1.0,
            fmap_max=arguments.fmap_max,
            stddev_group=4,
            resampling=Resampling.fused,
        ),
        loss={"name": "logistic", "gamma": 1.0, "reg_interval": 1},
        precision=Precision.fp32,
        elastic=elastic,
        distributed=DistributedConfig(elastic_chunks=getattr(arguments, "chunks", 4)),
    )


def phases_of(arguments: argparse.Namespace) -> tuple[Phase, ...]:
    """Those of the file of configs/schedule/ that `--schedule` names."""
    config = validated(TrainConfig, compose("train", [f"schedule={arguments.schedule}"]))
    return config.schedule.build().phases


def batches_of(arguments: argparse.Namespace, stage: int) -> list[int]:
    if arguments.schedule is None:
        return list(arguments.batches)
    return sorted({phase.batch for phase in phases_of(arguments) if phase.resolution == stage})


def trainer_of(arguments: argparse.Namespace, group: ProcessGroup, variant: str) -> Trainer:
    phases = [phase_of(stage, batch) for stage in arguments.stages for batch in batches_of(arguments, stage)]
    elastic = trainer_config(arguments, elastic=True)
    config = elastic if variant == "elastic" else trainer_config(arguments)
    architecture = config.model.architecture(max(arguments.stages), 3, num_classes=0)
    trainer, _ = build_trainer(config, architecture, phases, group, check_memory=False)
    if variant == "passes":
        chunks = BatchPartition.of(elastic, (), group.world_size)
        for phase in phases:
            size = chunks.micro_batch_size(phase.batch)
            trainer.micro_batch_sizes[phase.resolution, phase.batch] = size or phase.batch
    return trainer


def measure(arguments: argparse.Namespace, group: ProcessGroup) -> list[dict[str, Any]]:
    trainers = {variant: trainer_of(arguments, group, variant) for variant in VARIANTS}
    rows = []
    for stage in arguments.stages:
        for batch in batches_of(arguments, stage):
            phase = phase_of(stage, batch)
            walls: dict[str, list[float]] = {name: [] for name in VARIANTS}
            works: dict[str, list[float]] = {name: [] for name in VARIANTS}
            for number in range(arguments.rounds + 1):  # the first is not counted
                for name, trainer in trainers.items():
                    indices = trainer.indices(batch)
                    images = torch.rand(batch if indices is None else len(indices), 3, stage, stage) * 2 - 1
                    group.all_gather_object("ready")
                    began, worked = time.perf_counter(), time.process_time()
                    trainer.step(phase, Reals(images, None, None), StepRng(0, number * batch, CPU), EMA_DECAY)
                    group.all_gather_object("done")
                    walls[name].append(time.perf_counter() - began)
                    works[name].append(time.process_time() - worked)
            row: dict[str, Any] = {"resolution": stage, "batch": batch}
            for what, taken in (("seconds", walls), ("processor_seconds", works)):
                medians = {name: statistics.median(times[1:]) for name, times in taken.items()}
                row[what] = {name: round(value, 4) for name, value in medians.items()}
                for name in VARIANTS[1:]:
                    row[f"{name}_cost_in_{what}"] = round(medians[name] / medians["plain"] - 1, 3)
            rows.append(row)
            if group.is_main:
                print(json.dumps(row), flush=True)
    return rows


def whole(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What the images of the schedule take, all stages together."""
    hours = dict.fromkeys(VARIANTS, 0.0)
    for phase in phases_of(arguments):
        for row in rows:
            if (phase.resolution, phase.batch) == (row["resolution"], row["batch"]):
                for name, seconds in row["processor_seconds"].items():
                    hours[name] += (phase.end - phase.start) / phase.batch * seconds / 3600
    cost = round(hours["elastic"] / hours["plain"] - 1, 3)
    rounded = {name: round(value, 1) for name, value in hours.items()}
    return {"schedule": arguments.schedule, "processor_hours": rounded, "elastic_cost": cost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--fmap-base", type=int, default=256, help="the demo's; the paper's is 8192")
    parser.add_argument("--fmap-max", type=int, default=64, help="the demo's; the paper's is 512")
    parser.add_argument("--stages", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--batches", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--schedule", help="a schedule, such as official_1gpu, instead of --batches")
    parser.add_argument("--chunks", type=int, default=4, help="distributed.elastic_chunks")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    info = rank_from_environment()
    if info is None and arguments.ranks > 1:
        program = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={arguments.ranks}"]
        subprocess.run([*program, "-m", "benchmarks.elastic", *sys.argv[1:]], check=True)  # noqa: S603 - itself
        return
    configure_process(CPU, Precision.fp32)
    group = ProcessGroup.single_process(CPU) if info is None else ProcessGroup.connect(info, CPU, 120)
    rows = measure(arguments, group)
    if arguments.schedule is not None and group.is_main:
        print(json.dumps(whole(arguments, rows)))
    group.shutdown()


if __name__ == "__main__":
    main()
