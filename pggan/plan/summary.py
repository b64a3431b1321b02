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
from pggan.plan.links import LINKS, Reduction
from pggan.plan.phases import PhaseCost
from pggan.plan.power import watts_of
from pggan.plan.run_time import RunTime
from pggan.plan.scaling import Load, Network, Scaling, dominated_from, scaled
from pggan.training.device_rates import hardware


def summary(
    config: PlanConfig, architecture: Architecture, costs: Sequence[PhaseCost], spent: RunTime, device: torch.device
) -> dict[str, Any]:
    """The whole plan, as plain values."""
    facts = hardware(device)
    watts, watts_source = watts_of(device.type, facts["name"])
    if config.watts is not None:
        watts, watts_source = config.watts, "watts="
    with torch.device("meta"):  # shapes only
        networks = Generator(architecture), Discriminator(architecture)
    group, timings = config.model.stddev_group, spent.timings
    loads = [load_of(cost, timing, group) for cost, timing in zip(costs, timings, strict=True)]
    free = free_memory(device)
    flops = sum(cost.updates * cost.flops for cost in costs)
    updating = sum(cost.updates * timing.seconds for cost, timing in zip(costs, timings, strict=True))
    hours = (updating + spent.overhead.seconds) / 3600
    return {
        "name": config.name,
        "hardware": facts,
        "devices": spent.devices,
        "versions": versions(),
        "parameters": {
            "generator": count_parameters(networks[0]),
            "discriminator": count_parameters(networks[1]),
        },
        "watts": {"device": watts, "source": watts_source},
        "phases": [
            phase_facts(cost, load, timing, spent.devices * watts)
            | {"communication_dominates_from": dominance(config, [load])[config.network]}
            for cost, load, timing in zip(costs, loads, timings, strict=True)
        ],
        "total": {
            "images": sum(cost.images for cost in costs),
            "updates": sum(cost.updates for cost in costs),
            "exaflops": flops / 1e18,
            "hours": hours,
            "device_hours": spent.devices * hours,
            "energy_kwh": spent.devices * hours * watts / 1000,
            "peak_memory_bytes": max(cost.peak_bytes for cost in costs),
            "free_memory_bytes": free,
            "overhead_seconds": asdict(spent.overhead),
        },
        "scaling": {
            "network": config.network,
            "link": asdict(LINKS[config.network]),
            "ratio": dgc_ratio(config),
            "runs": scaling_runs(config, loads, spent.overhead.seconds, watts),
        },
        "communication_dominates_from": dominance(config, loads),
        "notes": [
            spent.note,
            "Operations: two per multiply-add, of convolutions and matrix products as they are defined. Memory: all "
            f"tensors at the worst moment, without scratch space of single operations; {free_text(free)} "
            "Training passes a batch that needs more in parts.",
            f"Energy: {watts:g} W per device ({watts_source}); hosts, cooling and network left out.",
            "Scaling: a ring of devices like this one, each with a link of its own; communication does not overlap computing; "
            "what choosing the numbers to send takes is left out. Strong: the same batch, shared in groups of "
            f"{group} images, so that some devices may have nothing to do. Weak: the batch grows with the devices."
            + ("" if config.calibrate else " Parts of a batch take their part of the time; calibrate=true checks."),
        ],
    }


def free_text(free: int | None) -> str:
    return "how much is free here is not known." if free is None else f"{free / 2**30:.1f} GiB are free here."


def load_of(cost: PhaseCost, timing: Timing, stddev_group: int) -> Load:
    return Load(
        updates=cost.updates,
        batch=cost.phase.batch,
        group=min(stddev_group, cost.phase.batch),
        seconds=timing.lone_seconds,
        fixed_seconds=timing.fixed_seconds,
        numbers=(cost.count.generator_gradient, cost.count.discriminator_gradient),
    )


def phase_facts(cost: PhaseCost, load: Load, timing: Timing, watts: float) -> dict[str, Any]:
    """A row of the table; `watts` are those of all devices."""
    phase, hours = cost.phase, cost.updates * timing.seconds / 3600
    return {
        "phase": phase.name,
        "resolution": phase.resolution,
        "fading": phase.fading,
        "images": cost.images,
        "updates": cost.updates,
        "batch": phase.batch,
        "learning_rate_g": phase.learning_rate_g,
        "learning_rate_d": phase.learning_rate_d,
        "parameters": {"generator": load.numbers[0], "discriminator": load.numbers[1]},
        "gradient_bytes": 4 * sum(load.numbers),
        "peak_memory_bytes": cost.peak_bytes,
        "flops_per_update": asdict(cost.count.flops) | {"mean": cost.flops},
        "flops": cost.updates * cost.flops,
        "milliseconds_per_update": 1000 * timing.seconds,
        "milliseconds_on_one_device": 1000 * load.seconds,
        "fixed_milliseconds": 1000 * load.fixed_seconds,
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
                about = {"scaling": scaling.value, "devices": devices, "reduction": reduction.value}
                runs.append({**about, **asdict(found), "energy_kwh": found.device_hours * watts / 1000})
    return runs


def dominance(config: PlanConfig, loads: Sequence[Load]) -> dict[str, dict[str, dict[str, int | None]]]:
    """From how many devices on updates communicate longer than they compute, by network, scaling and reduction."""
    return {
        name: {
            scaling.value: {
                reduction.value: dominated_from(loads, Network(link, reduction, dgc_ratio(config)), scaling)
                for reduction in Reduction
            }
            for scaling in Scaling
        }
        for name, link in LINKS.items()
    }


def dgc_ratio(config: PlanConfig) -> float:
    """The share of a gradient that gradients=dgc sends: as configured, or as by default."""
    return float(config.gradients.get("ratio", DGC_RATIO))
