"""A whole plan as plain values, for people and for JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from pggan.config import DGC_RATIO, PlanConfig
from pggan.config.describe import versions
from pggan.core.architecture import Architecture
from pggan.core.devices import free_memory
from pggan.networks.networks import Discriminator, Generator, count_parameters
from pggan.plan.calibration import Timing
from pggan.plan.links import LINKS, Network, Reduction
from pggan.plan.phases import PhaseCost
from pggan.plan.power import watts_of
from pggan.plan.run_time import RunTime
from pggan.plan.scaling import Load, Scaling, dominated_from, scaled
from pggan.training.device_rates import hardware


def summary(
    config: PlanConfig, architecture: Architecture, costs: Sequence[PhaseCost], spent: RunTime, device: torch.device
) -> dict[str, Any]:
    """The whole plan."""
    facts, free = hardware(device), free_memory(device)
    watts, source = (config.watts, "watts=") if config.watts is not None else watts_of(device.type, facts["name"])
    with torch.device("meta"):  # shapes only
        generator, discriminator = Generator(architecture), Discriminator(architecture)
    group, overhead, loads, phases = config.model.stddev_group, sum(spent.overhead.values()), [], []
    for cost, timing in zip(costs, spent.timings, strict=True):
        batch, numbers = cost.phase.batch, (cost.count.generator_gradient, cost.count.discriminator_gradient)
        fixed = timing.fixed_seconds
        loads.append(Load(cost.updates, batch, min(group, batch), timing.lone_seconds, fixed, numbers))
        row = phase_row(cost, timing, spent.devices * watts)
        phases.append(row | {"communication_dominates_from": dominance(config, loads[-1:], config.network)})
    hours = sum(row["hours"] for row in phases) + overhead / 3600
    memory = f"{free / 2**30:.1f} GiB are free here" if free is not None else "how much is free here is not known"
    parts = "" if config.calibrate else " Parts of a batch take their part of the time; calibrate=true checks."
    return {
        "name": config.name,
        "hardware": facts,
        "devices": spent.devices,
        "versions": versions(),
        "parameters": {"generator": count_parameters(generator), "discriminator": count_parameters(discriminator)},
        "watts": {"device": watts, "source": source},
        "phases": phases,
        "total": {
            "images": sum(cost.images for cost in costs),
            "updates": sum(cost.updates for cost in costs),
            "exaflops": sum(row["flops"] for row in phases) / 1e18,
            "hours": hours,
            "device_hours": spent.devices * hours,
            "energy_kwh": spent.devices * hours * watts / 1000,
            "peak_memory_bytes": max(cost.peak_bytes for cost in costs),
            "free_memory_bytes": free,
            "overhead_seconds": spent.overhead,
        },
        "scaling": {
            "network": config.network,
            "link": asdict(LINKS[config.network]),
            "ratio": dgc_ratio(config),
            "runs": scaling_runs(config, loads, overhead, watts),
        },
        "communication_dominates_from": {name: dominance(config, loads, name) for name in LINKS},
        "notes": [
            spent.note,
            "Operations: two per multiply-add, of convolutions and matrix products as they are defined. Memory: all "
            f"tensors at the worst moment, without scratch space of single operations; {memory}. "
            "Training passes a batch that needs more in micro-batches.",
            f"Energy: {watts:g} W per device ({source}); hosts, cooling and network left out.",
            "Scaling: a ring of devices like this one, each with a link of its own; communication does not overlap "
            "compute; the time to choose the numbers that dgc sends is left out. Strong: the same batch, shared in "
            f"groups of {group} images; some devices may be idle. Weak: the batch grows with the devices.{parts}",
        ],
    }


def phase_row(cost: PhaseCost, timing: Timing, watts: float) -> dict[str, Any]:
    """The figures of a phase; `watts` are those of all devices."""
    phase, hours = cost.phase, cost.updates * timing.seconds / 3600
    g, d = cost.count.generator_gradient, cost.count.discriminator_gradient
    return {
        "phase": phase.name,
        "resolution": phase.resolution,
        "fading": phase.fading,
        "images": cost.images,
        "updates": cost.updates,
        "batch": phase.batch,
        "learning_rate_g": phase.learning_rate_g,
        "learning_rate_d": phase.learning_rate_d,
        "parameters": {"generator": g, "discriminator": d},
        "gradient_bytes": 4 * (g + d),
        "peak_memory_bytes": cost.peak_bytes,
        "flops_per_update": asdict(cost.count.flops) | {"mean": cost.flops},
        "flops": cost.updates * cost.flops,
        "milliseconds_per_update": 1000 * timing.seconds,
        "milliseconds_on_one_device": 1000 * timing.lone_seconds,
        "fixed_milliseconds": 1000 * timing.fixed_seconds,
        "time_is": timing.source,
        "hours": hours,
        "energy_kwh": hours * watts / 1000,
    }


def scaling_runs(config: PlanConfig, loads: Sequence[Load], rest: float, watts: float) -> list[dict[str, Any]]:
    """The run on every number of devices, with every reduction, in both ways of scaling."""
    runs: list[dict[str, Any]] = []
    for scaling in Scaling:
        for devices in config.processes:
            for reduction in Reduction:
                network = Network(LINKS[config.network], reduction, dgc_ratio(config))
                found = scaled(loads, network, devices, scaling, rest)
                about = {"scaling": scaling, "devices": devices, "reduction": reduction}
                runs.append({**about, **asdict(found), "energy_kwh": found.device_hours * watts / 1000})
    return runs


def dominance(config: PlanConfig, loads: Sequence[Load], network: str) -> dict[str, dict[str, int | None]]:
    """The number of devices from which on updates communicate longer than they compute, by scaling and reduction."""
    kinds = [Network(LINKS[network], reduction, dgc_ratio(config)) for reduction in Reduction]
    return {scaling: {kind.reduction: dominated_from(loads, kind, scaling) for kind in kinds} for scaling in Scaling}


def dgc_ratio(config: PlanConfig) -> float:
    """The share of a gradient that gradients=dgc sends: as configured, or the default."""
    return float(config.gradients.get("ratio", DGC_RATIO))
