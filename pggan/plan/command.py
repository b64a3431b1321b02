"""`pggan plan`: what a run will take, found out without training it."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from pggan.architecture import Architecture
from pggan.bench.command import hardware
from pggan.bench.rates import measured_rates
from pggan.compute import Compute
from pggan.config import DataConfig, PlanConfig
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.device import choose_compute, choose_device, count_devices, records, set_up
from pggan.errors import UserError
from pggan.fitting import free_bytes
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.networks import Discriminator, Generator, count_parameters
from pggan.plan.calibration import ASSUMED, EXTRAPOLATED, Calibration, Timing
from pggan.plan.links import LINKS, Exchange
from pggan.plan.phases import PhaseCost, phase_costs
from pggan.plan.power import watts_of
from pggan.plan.rest import Chores, Rest
from pggan.plan.scaling import Load, Network, Scaling, dominated_from, scaled
from pggan.plan.tables import tables
from pggan.run_dir import versions

NOTHING = Rest(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class Time:
    """How long a run takes on one device, and how that is known."""

    timings: Sequence[Timing]
    rest: Rest
    note: str


def run(config: PlanConfig) -> int:
    """Print what the run of `config` will take."""
    kind, count = count_devices(config.devices)  # one of them is measured
    config = replace(config, processes=sorted({*config.processes, count * config.workers.nodes}))
    device, loss = choose_device(kind), build_loss(config.loss)
    compute = choose_compute(config.precision, config.compute, device)
    records(config.compute, device)  # refuses what is not there
    set_up(device, config.precision)
    channels, labels, data_note = image_facts(config.data)
    schedule = config.schedule.build()
    architecture = config.model.architecture(schedule.final_resolution, channels, labels)
    errors = Console(stderr=True, highlight=False)
    with errors.status("Counting") as status:
        costs = phase_costs(
            architecture,
            schedule,
            loss,
            optimizer=config.optimizer,
            compute=compute,
            device=device,
            tell=status.update,
        )
        spent = predicted_time(config, architecture, loss, compute, device=device, costs=costs, tell=status.update)
    plan = summary(config, architecture, costs, spent, device)
    plan["notes"] = [data_note, *plan["notes"]]
    if config.json:
        print(json.dumps(plan, indent=1))
        return 0
    console = Console(highlight=False)
    for table in tables(plan):
        console.print(table)
    return 0


def image_facts(config: DataConfig) -> tuple[int, int, str]:
    """Channels and classes of the images, and where that is from; of data, only a pyramid's index is read."""
    if config.path is not None and (Path(config.path) / INDEX_FILE).is_file():
        pyramid = ImagePyramid(Path(config.path))
        classes = len(pyramid.class_names or ()) if config.labels else 0
        return pyramid.channels, classes, f"{pyramid.channels} channels, {classes} classes, as in {pyramid.path}."
    if config.labels:
        raise UserError(
            "data.labels=true, but how many classes there are is not known.",
            "Prepare the data first (pggan prepare … labels=true), then give the pyramid as data.path=.",
        )
    if config.channels is not None:
        return config.channels, 0, f"{config.channels} channels, as data.channels says."
    return 3, 0, "3 channels, as long as data.channels= or a prepared data.path= don't say otherwise."


def predicted_time(
    config: PlanConfig,
    architecture: Architecture,
    loss: Loss,
    compute: Compute,
    *,
    device: torch.device,
    costs: Sequence[PhaseCost],
    tell: Callable[[str], None],
) -> Time:
    """The time of every update: measured here, or from a rate."""
    if config.calibrate:
        with TemporaryDirectory(prefix="pggan-plan-") as folder:
            calibration = Calibration(
                config,
                architecture,
                loss,
                compute,
                device=device,
                folder=Path(folder),
                notice=lambda text: print(text, file=sys.stderr),
            )
            timings = calibration.timings(costs, tell)
            tell("Measuring grids, ticks and a checkpoint")
            rest = Chores(config, calibration.state, device, Path(folder) / "run").rest(costs, timings)
        guessed = [cost.phase.name for cost, time in zip(costs, timings, strict=True) if time.source == EXTRAPOLATED]
        note = f"Time: median of {config.steps} or more real updates per phase, plus grids, ticks and checkpoints."
        if guessed:
            note += f" Extrapolated by operations from the phase before: {', '.join(guessed)}."
        return Time(timings, rest, note)
    if config.tflops is not None:
        rate, note = config.tflops * 1e12, f"Time: from tflops={config.tflops:g}, at every resolution."
    else:
        rate = measured_rates(device, config.precision, compute.dtype or torch.float32).multiplying
        note = (
            f"Time: as if updates ran at the {rate / 1e12:.3g} TFLOP/s of a large matrix product here. They don't: "
            "that is crude, several times too short for narrow networks and low resolutions; calibrate=true measures."
        )
    timings = [Timing(cost.flops / rate, 0.0, ASSUMED) for cost in costs]
    return Time(timings, NOTHING, f"{note} Without grids, ticks and checkpoints.")


def summary(
    config: PlanConfig, architecture: Architecture, costs: Sequence[PhaseCost], spent: Time, device: torch.device
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
    free = free_bytes(device)
    flops = sum(cost.updates * cost.flops for cost in costs)
    seconds = sum(load.updates * load.seconds for load in loads) + spent.rest.seconds
    return {
        "name": config.name,
        "hardware": facts,
        "versions": versions(),
        "parameters": {
            "generator": count_parameters(networks[0]),
            "discriminator": count_parameters(networks[1]),
        },
        "watts": {"device": watts, "source": watts_source},
        "phases": [
            phase_facts(cost, load, timing.source, watts)
            | {"communication_dominates_from": dominance(config, [load])[config.network]}
            for cost, load, timing in zip(costs, loads, timings, strict=True)
        ],
        "total": {
            "images": sum(cost.images for cost in costs),
            "updates": sum(cost.updates for cost in costs),
            "exaflops": flops / 1e18,
            "hours": seconds / 3600,
            "device_hours": seconds / 3600,
            "energy_kwh": seconds / 3600 * watts / 1000,
            "peak_memory_bytes": max(cost.peak_bytes for cost in costs),
            "free_memory_bytes": free,
            "rest_seconds": asdict(spent.rest),
        },
        "scaling": {
            "network": config.network,
            "link": asdict(LINKS[config.network]),
            "ratio": config.ratio,
            "runs": scaling_runs(config, loads, spent.rest.seconds, watts),
        },
        "communication_dominates_from": dominance(config, loads),
        "notes": [
            spent.note,
            "Operations: two per multiply-add, of convolutions and matrix products as they are defined. Memory: all "
            f"tensors at the worst moment, without scratch space of single operations; {free_text(free)} "
            "Training passes a batch that needs more in parts.",
            f"Energy: {watts:g} W per device ({watts_source}); hosts, cooling and network left out.",
            "Scaling: a ring of devices like this one, each with a link of its own; exchanges don't overlap computing; "
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
        seconds=timing.seconds,
        fixed_seconds=timing.fixed_seconds,
        numbers=(cost.count.generator_numbers, cost.count.discriminator_numbers),
    )


def phase_facts(cost: PhaseCost, load: Load, source: str, watts: float) -> dict[str, Any]:
    """A row of the table."""
    phase, seconds = cost.phase, load.updates * load.seconds
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
        "milliseconds_per_update": 1000 * load.seconds,
        "fixed_milliseconds": 1000 * load.fixed_seconds,
        "time_is": source,
        "hours": seconds / 3600,
        "energy_kwh": seconds / 3600 * watts / 1000,
    }


def scaling_runs(config: PlanConfig, loads: Sequence[Load], rest: float, watts: float) -> list[dict[str, Any]]:
    """The run on every number of devices, with every exchange, in both ways of scaling."""
    runs: list[dict[str, Any]] = []
    for scaling in Scaling:
        for devices in config.processes:
            for exchange in Exchange:
                network = Network(LINKS[config.network], exchange, config.ratio)
                found = scaled(loads, network, devices, scaling, rest)
                about = {"scaling": scaling.value, "devices": devices, "exchange": exchange.value}
                runs.append({**about, **asdict(found), "energy_kwh": found.device_hours * watts / 1000})
    return runs


def dominance(config: PlanConfig, loads: Sequence[Load]) -> dict[str, dict[str, dict[str, int | None]]]:
    """From how many devices on updates communicate longer than they compute, by network, scaling and exchange."""
    return {
        name: {
            scaling.value: {
                exchange.value: dominated_from(loads, Network(link, exchange, config.ratio), scaling)
                for exchange in Exchange
            }
            for scaling in Scaling
        }
        for name, link in LINKS.items()
    }
