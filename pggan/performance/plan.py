"""`pggan plan`: what a run will take, without training it."""

import json
from collections.abc import Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pggan.config import DataConfig, DgcConfig, TrainConfig
from pggan.config.commands import PlanConfig
from pggan.config.values import versions
from pggan.core.architecture import Precision
from pggan.core.devices import choose_device, count_devices, free_memory
from pggan.core.errors import UserError, nearest
from pggan.core.schedule import Phase
from pggan.core.text import given_words, next_command
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.losses import build_loss
from pggan.performance.bench import hardware
from pggan.performance.costs import CostCounter, StepCost, card_of, numel, watts_of
from pggan.performance.plan_tables import tables
from pggan.performance.scaling import (
    LINKS,
    Interconnect,
    Load,
    Reduction,
    Scaling,
    communication_bound_from,
    scaled,
)
from pggan.training.build import build_partition, step_times
from pggan.training.precision import configure_process, precision_on
from pggan.training.timing import PhaseTimes

DGC_RATIO = 0.1  # of the scaling table, unless gradients=dgc says another one
MEASURED, EXPECTED, PREDICTED = "measured", "expected", "predicted"  # times of steps: how they are known


def run(config: PlanConfig) -> int:
    """Print what the run of `config` will take; returns the exit code."""
    if config.interconnect not in LINKS:
        raise UserError(f"There is no interconnect '{config.interconnect}'.", nearest(config.interconnect, LINKS))
    channels, num_classes, data_note = image_facts(config.data)
    architecture = config.model.architecture(config.schedule.final_resolution, channels, num_classes)
    schedule, loss = config.schedule.build(), build_loss(vars(config.loss))
    kind, count = ("cuda", 1) if config.device is not None else count_devices(config.devices)
    partition = build_partition(config, (phase.batch for phase in schedule.phases), world_size=1)
    memory: int | None
    with Console(stderr=True, highlight=False).status("Measuring a few steps"):
        if config.device is not None:
            card = card_of(config.device)
            precision = card.precision(config.precision)
            times = step_times(config, architecture, torch.device("cuda"), card.speed(precision))
            found, memory = times.of_phases(schedule, seconds=0.0), int(card.gib * 2**30)
            facts = {"device": config.device.lower(), "name": card.name}
            note = f"Time: predicted for one {card.name} in {precision} by its data sheet; within a third."
        else:
            device, exact = choose_device(kind), config.compute.deterministic
            configure_process(device, config.precision, config.threads, one_thread=config.elastic, deterministic=exact)
            seconds = config.limit_seconds if config.calibrate else None
            times, precision = step_times(config, architecture, device), precision_on(device, config.precision)
            found = times.of_phases(schedule, partition.largest_local_batch, seconds=seconds)
            facts, memory, note = hardware(device), free_memory(device), measured_note(found)
    counter = CostCounter(architecture, loss, 2 if precision in (Precision.bf16, Precision.fp16) else 4)
    watts, source = (config.watts, "watts=") if config.watts is not None else watts_of(kind, facts["name"])
    rows, loads = list[dict[str, Any]](), list[Load]()
    for phase, steps in zip(schedule.phases, schedule.steps(), strict=True):
        if not steps:
            continue
        cost, taken = counter.cost(phase), found.seconds_per_image[phase.index] * phase.batch
        how = MEASURED if phase.resolution in found.measured else EXPECTED if config.device is None else PREDICTED
        images = min(phase.end, schedule.total) - phase.start
        about = {"phase": phase.name, "time_is": how, "images": images}
        rows.append(about | phase_row(phase, steps, cost, seconds=taken, watts=watts))
        fixed = min(times.speed.start_seconds * (phase.resolution.bit_length() - 2), taken)
        numels = cost.generator_weights, cost.discriminator_weights
        group = min(config.model.stddev_group, phase.batch)
        loads.append(Load(steps, phase.batch, group, taken, fixed, numels))
    hours, processes = sum(row["hours"] for row in rows), sorted({*config.processes, count * config.distributed.nnodes})
    ratio = config.gradients.ratio if isinstance(config.gradients, DgcConfig) else DGC_RATIO
    plan = {
        "name": config.name,
        "hardware": facts,
        "versions": versions(),
        "parameters": {"generator": numel(counter.g), "discriminator": numel(counter.d)},
        "watts": {"device": watts, "source": source},
        "phases": rows,
        "total": {
            **{key: sum(row[key] for row in rows) for key in ("images", "steps", "energy_kwh")},
            "exaflops": sum(row["flops"] for row in rows) / 1e18,
            "hours": hours,
            "memory_bytes": max(row["memory_bytes"] for row in rows),
            "device_memory_bytes": memory,
        },
        "scaling": {
            "interconnect": config.interconnect,
            "link": LINKS[config.interconnect]._asdict(),
            "ratio": ratio,
            "runs": scaling_runs(loads, config.interconnect, ratio, processes, watts),
        },
        "communication_dominates_from": {name: dominance(loads, name, ratio) for name in LINKS},
        "notes": [data_note, *notes(config, note, memory, f"{watts:g} W per device ({source})")],
    }
    if config.json:
        print(json.dumps(plan, indent=1))
        return 0
    Console(highlight=False).print(*tables(plan))
    of_plans = {field.name for field in fields(PlanConfig)} - {field.name for field in fields(TrainConfig)}
    print(next_command("train", *given_words(of_plans)))
    return 0


def image_facts(config: DataConfig) -> tuple[int, int, str]:
    """The channels and classes of the images, and a note of where they are from."""
    if config.path is not None and Path(config.path, INDEX_FILE).is_file():
        pyramid = ImagePyramid(Path(config.path))
        channels, num_classes = pyramid.channels, len(pyramid.class_names or ()) if config.labels else 0
        return channels, num_classes, f"{channels} channels, {num_classes} classes, as in {pyramid.path}."
    if config.labels:
        remedy = "Prepare the data first (pggan prepare … labels=true), then give the pyramid as data.path=."
        raise UserError("data.labels=true, but the number of classes is not known.", remedy)
    if config.channels is not None:
        return config.channels, 0, f"{config.channels} channels, as data.channels says."
    return 3, 0, "3 channels, unless data.channels= or a prepared data.path= says otherwise."


def phase_row(phase: Phase, steps: int, cost: StepCost, *, seconds: float, watts: float) -> dict[str, Any]:
    """The figures of a phase; `seconds`: of a step on a device of so many `watts`."""
    flops = {purpose: phase.batch * each for purpose, each in cost.flops._asdict().items()}
    hours, g, d = steps * seconds / 3600, cost.generator_weights, cost.discriminator_weights
    return {
        "resolution": phase.resolution,
        "fading": phase.fading,
        "steps": steps,
        "batch": phase.batch,
        "learning_rate_g": phase.learning_rate_g,
        "learning_rate_d": phase.learning_rate_d,
        "parameters": {"generator": g, "discriminator": d},
        "gradient_bytes": 4 * (g + d),
        "memory_bytes": cost.memory_bytes,
        "flops_per_step": flops,
        "flops": steps * flops["mean"],
        "milliseconds_per_step": 1000 * seconds,
        "images_per_second": phase.batch / seconds,
        "hours": hours,
        "energy_kwh": hours * watts / 1000,
    }


def measured_note(found: PhaseTimes) -> str:
    """How the times of steps on this machine are known, as a sentence."""
    if not found.measured:
        return "Time: by operations, from the rates of a product and a copy here; calibrate=true measures steps."
    most = max(found.measured)
    return f"Time: real steps up to {most}x{most} on one device here; what was not measured follows by operations."


def notes(config: PlanConfig, time_note: str, memory: int | None, power: str) -> list[str]:
    """The assumptions of a plan, in sentences."""
    known = "not known how much there is" if memory is None else f"there are {memory / 2**30:.1f} GiB"
    share = config.evaluation.share
    return [
        f"{time_note} Without the start, grids, checkpoints, and evaluations (at most {share:.0%} of the time).",
        "Operations: two per multiply-add of convolutions and matrix products, as PyTorch counts them.",
        "Memory is an estimate: weights, gradients, moments, and sixteen copies of every activation of a whole batch; "
        f"{known}. Training takes smaller micro-batches where it does not suffice.",
        f"Energy: {power}; hosts, cooling and network left out.",
        "Scaling: a ring of devices like this one, each with a link of its own; communication does not overlap "
        f"compute. Strong: the same batch, shared in groups of {config.model.stddev_group} images. Weak: the batch "
        "grows with the devices. pggan bench scaling measures it.",
    ]


def scaling_runs(
    loads: Sequence[Load], link: str, ratio: float, processes: Sequence[int], watts: float
) -> list[dict[str, Any]]:
    """The run on every number of devices, with every reduction, in strong and weak scaling."""
    runs: list[dict[str, Any]] = []
    for scaling, devices, reduction in product(Scaling, processes, Reduction):
        found = scaled(loads, Interconnect(LINKS[link], reduction, ratio), devices, scaling)
        about = {"scaling": scaling, "devices": devices, "reduction": reduction}
        runs.append({**about, **found, "energy_kwh": found["device_hours"] * watts / 1000})
    return runs


def dominance(loads: Sequence[Load], link: str, ratio: float) -> dict[str, dict[str, int | None]]:
    """The number of devices from which on steps communicate longer than they compute, by scaling and reduction."""
    return {
        scaling: {
            kind: communication_bound_from(loads, Interconnect(LINKS[link], kind, ratio), scaling) for kind in Reduction
        }
        for scaling in Scaling
    }
