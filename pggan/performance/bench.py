"""`pggan bench`: images per second of the training step on noise, per resolution, beside the reference step."""

import json
import platform
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from statistics import median
from typing import Any

import torch
from rich.console import Console

from pggan.config import Kernels, Switch, TrainerConfig
from pggan.config.commands import BenchConfig, default_trainer
from pggan.config.values import versions
from pggan.core.architecture import Architecture, Precision
from pggan.core.devices import choose_device, synchronize
from pggan.core.process import processor_facts
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.core.text import new_table, next_command, three_digits
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.training.build import build_trainer
from pggan.training.precision import configure_process
from pggan.training.timing import EMA_DECAY, WARMUP

QUEUED_UPDATES = 10  # on a GPU, between two waits for it: the wait and filling its queue again come once in so many
Step = Callable[[Phase, Reals, StepRng], object]


def run(config: BenchConfig) -> int:
    """Measure every stage with the networks of the highest one, and print the result.  Returns the exit code."""
    device, stages = choose_device(config.device, "device"), config.batches()
    configure_process(device, config.precision, config.threads)
    trained = replace(default_trainer(), model=config.model, loss=config.loss, precision=config.precision)
    compute = replace(trained.compute, kernels=Kernels.reference, cuda_graphs=Switch.off)
    plain = replace(trained, precision=Precision.fp32, compute=compute)
    architecture = config.model.architecture(max(stages)[0], 3, num_classes=0)
    errors, rows = Console(stderr=True, highlight=False), list[dict[str, Any]]()
    for side, batch in stages:
        phase = phase_of(side, batch)
        steps = {"step": trainer_step(trained, architecture, phase, device)}
        if config.against:
            steps["reference"] = trainer_step(plain, architecture, phase, device)
        interval = config.loss.reg_interval
        seconds = measured(steps, phase, device, interval=interval, rounds=config.steps, warmup=config.warmup)
        row = {
            "resolution": side,
            "batch": batch,
            "milliseconds_per_step": 1000 * seconds["step"],
            "images_per_second": batch / seconds["step"],
        }
        if config.against:
            row |= {"reference_images_per_second": batch / seconds["reference"]}
            row |= {"ratio": seconds["reference"] / seconds["step"]}
        rows.append(row)
        errors.print(f"{side}x{side}: {row['images_per_second']:.2f} img/s")
    if config.json:
        about = {"hardware": hardware(device), "versions": versions(), "loss": asdict(config.loss)}
        print(json.dumps({**about, "stages": rows}, indent=1))
        return 0
    table = new_table("Images per second", "side", "batch", "ms/step", "img/s", "reference", "ratio")
    for row in rows:
        keys = ("milliseconds_per_step", "images_per_second", "reference_images_per_second", "ratio")
        figures = (three_digits(row[key]) if key in row else "" for key in keys)
        table.add_row(str(row["resolution"]), str(row["batch"]), *figures)
    Console(highlight=False).print(table)
    print(next_command("plan", "experiment=demo", "calibrate=true"))
    return 0


def hardware(device: torch.device) -> dict[str, Any]:
    """The device and the system that figures are measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_facts()["model name"]
    return {"device": str(device), "name": name, "threads": torch.get_num_threads(), "system": platform.platform()}


def phase_of(resolution: int, batch: int) -> Phase:
    """A stable phase at `resolution`, with the paper's learning rate."""
    rates = {"learning_rate_g": 0.001, "learning_rate_d": 0.001}
    return Phase(0, resolution, fading=False, alpha=1.0, start=0, end=1, batch=batch, missing_levels=0, **rates)


def trainer_step(config: TrainerConfig, architecture: Architecture, phase: Phase, device: torch.device) -> Step:
    """The step that a run of `config` takes on one device, with new networks."""
    trainer = build_trainer(config, architecture, [phase], ProcessGroup.single_process(device))
    return lambda phase, reals, rng: trainer.step(phase, reals, rng, EMA_DECAY)


def measured(
    steps: dict[str, Step], phase: Phase, device: torch.device, *, interval: int, rounds: int, warmup: int
) -> dict[str, float]:
    """Seconds per update of all `steps`: medians of `rounds` in which they take turns.

    Args: interval: updates from one penalty to the next: all rounds have as many with penalties; warmup: rounds before.
    """
    count = interval if device.type == "cpu" else interval * -(-QUEUED_UPDATES // interval)
    images = 2 * torch.rand(phase.batch, 3, phase.resolution, phase.resolution, device=device) - 1
    reals = Reals(images.contiguous(memory_format=torch.channels_last), None, None)
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    warmup = max(warmup, -(-WARMUP[device.type] // count))
    for number in range(warmup + rounds):
        for name, step in steps.items():
            synchronize(device)
            start = time.perf_counter()
            for update in range(number * count, (number + 1) * count):
                step(phase, reals, StepRng(0, update * phase.batch, device))
            synchronize(device)
            seconds[name].append((time.perf_counter() - start) / count)
    return {name: median(taken[warmup:]) for name, taken in seconds.items()}
