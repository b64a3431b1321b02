"""A whole plan as plain values, for people and for JSON."""

from dataclasses import asdict
from itertools import product
from typing import Any, NamedTuple

import torch

from pggan.config import DgcConfig, PlanConfig
from pggan.config.describe import versions
from pggan.core.architecture import Architecture
from pggan.core.devices import free_memory
from pggan.networks.features.discriminator import new_discriminator
from pggan.networks.networks import Generator, count_parameters
from pggan.performance.plan.calibration import Timing
from pggan.performance.plan.device_table import DeviceSpec
from pggan.performance.plan.phases import PhaseCost
from pggan.performance.plan.run_time import RunTime
from pggan.performance.plan.scaling import (
    LINKS,
    Interconnect,
    Load,
    Reduction,
    Scaling,
    communication_bound_from,
    scaled,
)
from pggan.training.device_rates import hardware

# The power of a GPU is its limit (thermal design power), which training comes close to.  By watts, parts of the names
# that PyTorch gives; the longest that fits counts.  Source: NVIDIA's data sheets.
WATTS = {
    1000: ["B200"],
    700: ["H200", "H100"],
    600: ["H200 NVL"],
    575: ["RTX 5090"],
    450: ["RTX 4090"],
    400: ["H100 NVL", "A100"],
    350: ["H100 PCIe", "L40S", "RTX 3090"],
    300: ["A100-PCIE", "A100 80GB PCIe", "V100", "L40"],
    250: ["V100-PCIE"],
    72: ["L4"],
    70: ["T4"],
}
OTHER_WATTS = {"cpu": 100, "mps": 40, "cuda": 300}  # guesses


class Hardware(NamedTuple):
    """The devices that a run is planned for."""

    facts: dict[str, Any]
    kind: str  # cpu, cuda or mps
    memory: int | None  # bytes that a run may take, where they are known
    memory_note: str


def this_machine(device: torch.device) -> Hardware:
    """`device` of this machine."""
    free = free_memory(device)
    note = f"{free / 2**30:.1f} GiB are free here" if free is not None else "how much is free here is not known"
    return Hardware(hardware(device), device.type, free, note)


def elsewhere(key: str, card: DeviceSpec) -> Hardware:
    """A `card` of the table, called `key`, which is not here."""
    note = f"the card has {card.memory_bytes / 2**30:.1f} GiB"
    return Hardware({"device": key, "name": card.name}, "cuda", card.memory_bytes, note)


def summary(
    config: PlanConfig, architecture: Architecture, costs: list[PhaseCost], spent: RunTime, on: Hardware
) -> dict[str, Any]:
    """The whole plan."""
    watts, source = (config.watts, "watts=") if config.watts is not None else watts_of(on.kind, on.facts["name"])
    with torch.device("meta"):  # shapes only
        generator, discriminator = Generator(architecture), new_discriminator(architecture)
    group, overhead, loads, phases = config.model.stddev_group, sum(spent.overhead.values()), [], []
    for cost, timing in zip(costs, spent.timings, strict=True):
        batch, numels = cost.phase.batch, (cost.count.generator_gradient, cost.count.discriminator_gradient)
        fixed = timing.fixed_seconds
        loads.append(Load(cost.steps, batch, min(group, batch), timing.single_device_seconds, fixed, numels))
        row = phase_row(cost, timing, spent.devices * watts)
        phases.append(row | {"communication_dominates_from": dominance(config, loads[-1:], config.interconnect)})
    hours = sum(row["hours"] for row in phases) + overhead / 3600
    measurable = config.device is None and not config.calibrate
    parts = " Parts of a batch take their part of the time; calibrate=true checks." if measurable else ""
    return {
        "name": config.name,
        "hardware": on.facts,
        "devices": spent.devices,
        "versions": versions(),
        "parameters": {"generator": count_parameters(generator), "discriminator": count_parameters(discriminator)},
        "watts": {"device": watts, "source": source},
        "phases": phases,
        "total": {
            "images": sum(cost.images for cost in costs),
            "steps": sum(cost.steps for cost in costs),
            "exaflops": sum(row["flops"] for row in phases) / 1e18,
            "hours": hours,
            "device_hours": spent.devices * hours,
            "energy_kwh": spent.devices * hours * watts / 1000,
            "peak_memory_bytes": max(cost.peak_bytes for cost in costs),
            "free_memory_bytes": on.memory,
            "overhead_seconds": spent.overhead,
        },
        "scaling": {
            "interconnect": config.interconnect,
            "link": LINKS[config.interconnect]._asdict(),
            "ratio": interconnects(config, config.interconnect)[0].ratio,
            "runs": scaling_runs(config, loads, overhead, watts),
        },
        "communication_dominates_from": {name: dominance(config, loads, name) for name in LINKS},
        "notes": [
            spent.note,
            "Operations: two per multiply-add, of convolutions and matrix products as they are defined. Memory: all "
            f"tensors at the worst moment, without scratch space of single operations; {on.memory_note}. "
            "Training passes a batch that needs more in micro-batches.",
            f"Energy: {watts:g} W per device ({source}); hosts, cooling and network left out.",
            "Scaling: a ring of devices like this one, each with a link of its own; communication does not overlap "
            "compute; the time to choose the numbers that dgc sends is left out. Strong: the same batch, shared in "
            f"groups of {group} images; some devices may be idle. Weak: the batch grows with the devices.{parts}",
        ],
    }


def phase_row(cost: PhaseCost, timing: Timing, watts: float) -> dict[str, Any]:
    """The figures of a phase; `watts` are those of all devices."""
    phase, hours = cost.phase, cost.steps * timing.seconds / 3600
    g, d = cost.count.generator_gradient, cost.count.discriminator_gradient
    return {
        "phase": phase.name,
        "resolution": phase.resolution,
        "fading": phase.fading,
        "images": cost.images,
        "steps": cost.steps,
        "batch": phase.batch,
        "learning_rate_g": phase.learning_rate_g,
        "learning_rate_d": phase.learning_rate_d,
        "parameters": {"generator": g, "discriminator": d},
        "gradient_bytes": 4 * (g + d),
        "peak_memory_bytes": cost.peak_bytes,
        "flops_per_step": asdict(cost.count.flops) | {"mean": cost.flops},
        "flops": cost.steps * cost.flops,
        "milliseconds_per_step": 1000 * timing.seconds,
        "milliseconds_on_one_device": 1000 * timing.single_device_seconds,
        "fixed_milliseconds": 1000 * timing.fixed_seconds,
        "time_is": timing.source,
        "hours": hours,
        "energy_kwh": hours * watts / 1000,
    }


def scaling_runs(config: PlanConfig, loads: list[Load], rest: float, watts: float) -> list[dict[str, Any]]:
    """The run on every number of devices, with every reduction, in strong and weak scaling."""
    runs: list[dict[str, Any]] = []
    for scaling, devices, interconnect in product(
        Scaling, config.processes, interconnects(config, config.interconnect)
    ):
        found = scaled(loads, interconnect, devices, scaling, rest)
        about = {"scaling": scaling, "devices": devices, "reduction": interconnect.reduction}
        runs.append({**about, **found, "energy_kwh": found["device_hours"] * watts / 1000})
    return runs


def dominance(config: PlanConfig, loads: list[Load], link: str) -> dict[str, dict[str, int | None]]:
    """The number of devices from which on steps communicate longer than they compute, by scaling and reduction."""
    kinds = interconnects(config, link)
    return {
        scaling: {kind.reduction: communication_bound_from(loads, kind, scaling) for kind in kinds}
        for scaling in Scaling
    }


DGC_RATIO = 0.1  # of the table's last row, unless gradients=dgc says another one


def interconnects(config: PlanConfig, link: str) -> list[Interconnect]:
    """A link with every reduction; gradients=dgc sends as much as configured, or as by default."""
    ratio = config.gradients.ratio if isinstance(config.gradients, DgcConfig) else DGC_RATIO
    return [Interconnect(LINKS[link], reduction, ratio) for reduction in Reduction]


def watts_of(device_type: str, name: str) -> tuple[float, str]:
    """Watts of a device of `device_type` (cpu, cuda, mps) called `name`, and where the figure is from."""
    known = {part: watts for watts, parts in WATTS.items() for part in parts if device_type == "cuda" and part in name}
    if known:
        part = max(known, key=len)
        return known[part], f"data sheet of the {part}"
    return OTHER_WATTS[device_type], f"a guess for {device_type}; set watts= for a better figure"
