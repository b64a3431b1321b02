"""`pggan bench` times training steps on one device, and `pggan bench scaling` on several ranks."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import torch
from rich.console import Console

from pggan.config.commands import BenchConfig, BenchScalingConfig
from pggan.config.values import versions
from pggan.core.architecture import Precision
from pggan.core.devices import choose_device, configure_process, count_devices, synchronize
from pggan.core.errors import UserError
from pggan.core.process import processor_facts
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.text import new_table, next_command, three_digits
from pggan.distributed.launch import launch
from pggan.distributed.process_group import ProcessGroup, rank_from_environment, run_distributed
from pggan.losses import build_loss
from pggan.losses.base import Reals
from pggan.training.build import TrainerSettings, build_trainer
from pggan.training.timing import EMA_DECAY, WARMUP

QUEUED_UPDATES = 10  # A GPU is synchronized only after 10 or more steps, because waiting costs time.
LONG_AFTER = 10**9  # Steps are timed as if after 10^9 images, when deep gradient compression (DGC) has warmed up.
Row = dict[str, Any]
Step = Callable[[Phase, Reals, StepRng], object]


def run(config: BenchConfig) -> int:
    """Time training steps of the same networks at each resolution in `config.stages`, and print the times."""
    device, stages = choose_device(config.device, "device"), config.batches()
    configure_process(device, config.threads)
    kinds = {"step": TrainerSettings(loss=build_loss(vars(config.loss)), precision=config.precision)}
    if config.against:
        kinds["reference"] = replace(kinds["step"], precision=Precision.fp32, reference=True, cuda_graphs=False)
    architecture = config.model.architecture(max(stages)[0], 3, num_classes=0)
    errors, rows = Console(stderr=True, highlight=False), list[Row]()
    for side, batch in stages:
        phase, steps = phase_of(side, batch), dict[str, Step]()
        for name, one in kinds.items():
            trainer = build_trainer(one, architecture, [phase], ProcessGroup.single_process(device))
            steps[name] = partial(trainer.step, ema_decay=EMA_DECAY)
        seconds = measured(steps, phase, device, config)
        rates = {name: batch / each for name, each in seconds.items()}
        row = {"resolution": side, "batch": batch, "milliseconds_per_step": 1000 * seconds["step"]}
        row["images_per_second"] = rates["step"]
        if config.against:
            row |= {"reference_images_per_second": rates["reference"], "ratio": rates["step"] / rates["reference"]}
        rows.append(row)
        errors.print(f"{side}x{side}: {rates['step']:.2f} img/s")
    report(config, device, rows, next_command("plan", "experiment=demo", "calibrate=true"))
    return 0


def report(
    config: BenchConfig | BenchScalingConfig, device: torch.device, rows: list[Row], next_line: str, **keys: Any
) -> None:
    """Print `rows` as a table or, with json=true, as JSON; `keys` {name: value} are added to the JSON."""
    if config.json:
        about = {"hardware": hardware(device), "versions": versions(), "loss": vars(config.loss)}
        print(json.dumps({**about, **keys, "stages": rows}, indent=1))
        return
    table = new_table("Training steps", *(key.replace("_", "\n") for key in rows[0]))
    for row in rows:
        table.add_row(*(three_digits(cell) if isinstance(cell, float) else str(cell) for cell in row.values()))
    Console(highlight=False).print(table)
    print(next_line)


def hardware(device: torch.device) -> dict[str, Any]:
    """The name of `device`, the number of CPU threads, and the operating system."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_facts()["model name"]
    return {"device": str(device), "name": name, "threads": torch.get_num_threads(), "system": platform.platform()}


def phase_of(resolution: int, batch: int) -> Phase:
    """A phase at `resolution` without fading, with the paper's learning rates."""
    rates = {"learning_rate_g": 0.001, "learning_rate_d": 0.001}
    return Phase(0, resolution, fading=False, alpha=1.0, start=0, end=1, batch=batch, missing_levels=0, **rates)


def measured(steps: dict[str, Step], phase: Phase, device: torch.device, config: BenchConfig) -> dict[str, float]:
    """Time the functions in `steps` {name: function} alternately; returns {name: median seconds of a step}."""
    interval = config.loss.reg_interval  # every `interval`-th step has a gradient penalty; a round has whole intervals
    count = interval if device.type == "cpu" else interval * -(-QUEUED_UPDATES // interval)
    images = 2 * torch.rand(phase.batch, 3, phase.resolution, phase.resolution, device=device) - 1
    reals = Reals(images.contiguous(memory_format=torch.channels_last), None, None)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    warmup = -(-WARMUP[device.type] // count)
    for number in range(warmup + config.steps):
        for name, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            for update in range(number * count, (number + 1) * count):
                step(phase, reals, StepRng(0, update * phase.batch, device))
            synchronize(device)
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: median(taken[warmup:]) for name, taken in seconds.items()}


# ---- In the scaling benchmark, N ranks take a step together while the other ranks wait.


def run_scaling(config: BenchScalingConfig) -> int:
    """Start the ranks or, in a rank's process, time steps together with the other ranks.  Returns the exit code."""
    info, count = rank_from_environment(), -(-max(config.processes) // config.distributed.nnodes)  # ranks per machine
    if info is not None:
        return run_distributed(info, config.devices, partial(measure_scaling, config))
    for size, (_, batch) in product(config.processes, config.batches()):
        settings_of(config).partition(config.model.stddev_group, [batch * size], size)
    kind, there = count_devices(config.devices)
    if config.devices == "auto" and there < count:
        kind = "cpu"
    if kind != "cpu" and there < count:
        problem = f"Each rank needs its own device (processes={config.processes}). This machine has {there} devices."
        raise UserError(problem, "Use fewer ranks, or devices=cpu.")
    if max(config.processes) == 1:
        return measure_scaling(config, ProcessGroup.single_process(choose_device(kind)))
    values = {**asdict(config), "devices": kind}
    return launch("bench scaling", values, count, **config.distributed.launcher, threads=config.threads or 1)


def settings_of(config: BenchScalingConfig) -> TrainerSettings:
    """The settings of the trainer that `pggan bench scaling` times."""
    return TrainerSettings(
        loss=build_loss(vars(config.loss)),
        precision=config.precision,
        gradients=vars(config.gradients),
        elastic=config.elastic,
        elastic_chunks=config.distributed.elastic_chunks,
        cuda_graphs=False,
    )


def timed_step(config: BenchScalingConfig, group: ProcessGroup, stage: int, batch: int) -> Callable[[], float]:
    """Build a function that takes one step together with all ranks of `group`, and returns the step's seconds."""
    phase, device = phase_of(stage, batch * group.world_size), group.device
    architecture = config.model.architecture(max(config.batches())[0], 3, num_classes=0)
    trainer = build_trainer(settings_of(config), architecture, [phase], group)
    trainer.state.images = LONG_AFTER
    indices = trainer.indices(phase.batch)
    count = phase.batch if indices is None else len(indices)
    reals = Reals(2 * torch.rand(count, 3, stage, stage, device=device) - 1, None, None)

    def step() -> float:
        group.barrier()
        start = time.perf_counter()
        trainer.step(phase, reals, StepRng(0, trainer.state.images, device), EMA_DECAY)
        synchronize(device)
        return time.perf_counter() - start

    return step


def measure_scaling(config: BenchScalingConfig, group: ProcessGroup) -> int:
    """Time steps at each resolution with each number of ranks; rank 0 prints the results."""
    configure_process(group.device, config.threads, one_thread=True)
    console, rows = Console(stderr=True, highlight=False), list[Row]()
    groups = {size: group.subgroup(size) for size in config.processes}
    for stage, batch in config.batches():
        steps = {size: timed_step(config, part, stage, batch) for size, part in groups.items() if part is not None}
        times: dict[int, list[float]] = {size: [] for size in steps}
        for size in config.processes * (1 + config.steps):  # The first round is a warm-up.
            group.barrier()
            if size in steps:
                times[size].append(steps[size]())
        group.barrier()
        if group.is_main:
            rows += rows_of(stage, batch, {size: taken[1:] for size, taken in times.items()})
            console.print(f"{stage}x{stage}: {rows[-1]['speedup']:.2f} times one rank with {rows[-1]['ranks']}")
    if group.is_main:
        count, keys = max(config.processes), {"gradients": vars(config.gradients), "elastic": config.elastic}
        train = next_command("train", "hours=2", devices=f"cpu:{count}" if group.device.type == "cpu" else count)
        report(config, group.device, rows, train, **keys)
    return 0


def rows_of(stage: int, batch: int, times: dict[int, list[float]]) -> list[Row]:
    """The table rows for one resolution, from `times` {number of ranks: seconds of each step}."""
    seconds = {size: median(steps) for size, steps in times.items()}
    rates = {size: size * batch / seconds[size] for size in times}
    least = min(rates)
    return [
        {
            "resolution": stage,
            "local_batch": batch,
            "ranks": size,
            "milliseconds_per_step": 1000 * seconds[size],
            "images_per_second": rate,
            "speedup": rate / rates[least] * least,
            "efficiency": rate / rates[least] * least / size,
        }
        for size, rate in rates.items()
    ]
