"""`pggan plan`: what a run will take, found out without training it."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from rich.console import Console

from pggan.bench.command import hardware
from pggan.config import DataConfig, PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.errors import UserError
from pggan.data.format.pyramid import INDEX_FILE, ImagePyramid
from pggan.distributed.agent import run_workers
from pggan.distributed.devices import (
    choose_compute,
    choose_device,
    count_devices,
    device_of,
    records,
    set_up,
    threads_of_each,
)
from pggan.distributed.membership import division_of, take_part
from pggan.distributed.process_group import World, launched
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.networks.networks import Discriminator, Generator, count_parameters
from pggan.networks.numerics import Compute
from pggan.plan.calibration import ASSUMED, EXTRAPOLATED, Calibration, Timing
from pggan.plan.links import LINKS, Exchange
from pggan.plan.overhead import Chores, Rest
from pggan.plan.phases import PhaseCost, phase_costs
from pggan.plan.power import watts_of
from pggan.plan.scaling import Load, Network, Scaling, dominated_from, scaled
from pggan.plan.starting import seconds_of_starting
from pggan.plan.tables import tables
from pggan.plan.updates import noise
from pggan.run.run_dir import plain, versions
from pggan.training.cost.device_rates import measured_rates
from pggan.training.cost.memory_fit import free_bytes

NOTHING = Rest(0.0, 0.0, 0.0, 0.0)
LEAST_IMAGES = 16  # of noise, to load from


@dataclass(frozen=True)
class Time:
    """How long a run takes, and how that is known."""

    timings: Sequence[Timing]
    rest: Rest
    devices: int  # that it runs on
    note: str


def run(config: PlanConfig) -> int:
    """Print what the run of `config` will take; with calibrate=true, in as many processes as the run would have."""
    place = launched()
    if place is not None:
        return take_part(place, partial(device_of, place, config.devices), config.workers, partial(plan_in, config))
    kind, count = count_devices(config.devices)
    size = count * config.workers.nodes
    config = replace(config, processes=sorted({*config.processes, size}))
    if size == 1 or not config.calibrate:
        return plan_in(config, World.alone(choose_device(kind)))
    division_of(config, size)
    config = replace(config, devices=f"cpu:{count}" if kind == "cpu" else str(count))
    threads = threads_of_each(count, elastic=config.elastic)
    workers = replace(config.workers, restarts=0)
    return run_workers("plan", plain(config), count, workers, threads=threads, say=tell_people)


def plan_in(config: PlanConfig, world: World) -> int:
    """The plan, in one of the processes; the first one prints."""
    config = replace(config, processes=sorted({*config.processes, world.size}))
    device, loss = world.device, build_loss(config.loss)
    compute = choose_compute(config.precision, config.compute, device)
    records(config.compute, device)  # refuses what is not there
    set_up(device, config.precision)
    if config.elastic and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as training has
    channels, labels, data_note = image_facts(config.data)
    schedule = config.schedule.build()
    architecture = config.model.architecture(schedule.final_resolution, channels, labels)
    with Console(stderr=True, highlight=False, quiet=not world.is_first).status("Counting") as status:
        costs = phase_costs(
            architecture,
            schedule,
            loss,
            optimizer=config.optimizer,
            compute=compute,
            device=device,
            tell=status.update,
            division=division_of(config, world.size, world.rank),
        )
        if config.calibrate:
            spent = measured_time(config, architecture, loss, compute, world=world, costs=costs, tell=status.update)
        else:
            spent = assumed_time(config, compute, device, costs)
    if not world.is_first:
        return 0
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


def measured_time(
    config: PlanConfig,
    architecture: Architecture,
    loss: Loss,
    compute: Compute,
    *,
    world: World,
    costs: Sequence[PhaseCost],
    tell: Callable[[str], None],
) -> Time:
    """The time of every update, and of everything else that a run does, measured by all its processes."""
    with TemporaryDirectory(prefix="pggan-plan-") as name:
        folder, start, rest = Path(name), 0.0, NOTHING
        pyramid = noise(folder / "noise", architecture, max(LEAST_IMAGES, config.model.stddev_group * world.local_size))
        with world.together():
            if world.is_first:
                tell("Measuring the start of a run")
                prepared = config.data.path is not None and (Path(config.data.path) / INDEX_FILE).is_file()
                data = Path(str(config.data.path)) if prepared else pyramid.path
                start = seconds_of_starting(config, data, folder / "start", world)
        calibration = Calibration(config, architecture, loss, compute, world=world, pyramid=pyramid, notice=tell_people)
        comparing = calibration.seconds_of_comparing()
        timings = calibration.timings(costs, tell)
        kept = calibration.exchange.parts()
        if world.is_first:
            tell("Measuring grids, ticks and a checkpoint")
            chores = Chores(config, calibration.state, kept, world.device, folder / "run")
            rest = chores.rest(costs, timings, start=start, comparing=comparing)
        world.wait_for_all()
    guessed = [cost.phase.name for cost, time in zip(costs, timings, strict=True) if time.source == EXTRAPOLATED]
    together = f" by {world.size} processes, which add up their gradients" if world.size > 1 else ""
    note = f"Time: real updates of every phase{together}, plus the start of a run, grids, ticks and checkpoints."
    if guessed:
        note += f" Extrapolated by operations from the phase before: {', '.join(guessed)}."
    return Time(timings, rest, world.size, note)


def assumed_time(config: PlanConfig, compute: Compute, device: torch.device, costs: Sequence[PhaseCost]) -> Time:
    """The time of every update on one device, from a rate."""
    if config.tflops is not None:
        rate, note = config.tflops * 1e12, f"Time: from tflops={config.tflops:g}, at every resolution."
    else:
        rate = measured_rates(device, config.precision, compute.dtype or torch.float32).multiplying
        note = (
            f"Time: as if updates ran at the {rate / 1e12:.3g} TFLOP/s of a large matrix product here. They don't: "
            "that is crude, several times too short for narrow networks and low resolutions; calibrate=true measures."
        )
    seconds = [cost.flops / rate for cost in costs]
    timings = [Timing(each, each, 0.0, ASSUMED) for each in seconds]
    return Time(timings, NOTHING, 1, f"{note} Without the start, grids, ticks and checkpoints.")


def tell_people(text: str) -> None:
    print(text, file=sys.stderr)


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
    updating = sum(cost.updates * timing.seconds for cost, timing in zip(costs, timings, strict=True))
    hours = (updating + spent.rest.seconds) / 3600
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
        seconds=timing.lone_seconds,
        fixed_seconds=timing.fixed_seconds,
        numbers=(cost.count.generator_numbers, cost.count.discriminator_numbers),
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
