"""`pggan plan` predicts the time, memory, energy and scaling of a training run."""

import json
import re
from dataclasses import replace
from itertools import product
from math import inf, log10
from pathlib import Path
from typing import Any

import torch
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from pggan.config.commands import PlanConfig
from pggan.config.train import DataConfig, DgcConfig
from pggan.config.values import versions
from pggan.core.devices import choose_device, configure_process, count_devices, free_memory, precision_on
from pggan.core.errors import UserError, nearest
from pggan.core.text import duration, new_table, three_digits
from pggan.data.pyramid import is_pyramid
from pggan.networks.networks import count_parameters
from pggan.performance.bench import hardware
from pggan.performance.costs import (
    CARDS,
    LINKS,
    NCCL_BYTES,
    OTHER_WATTS,
    Cluster,
    CostCounter,
    Load,
    Reduction,
    Scaling,
    card_of,
    count_cards,
)
from pggan.performance.hours import extra, facts_of
from pggan.training.timing import StepTimes

CALIBRATION_SECONDS = 120.0  # With calibrate=true, steps are timed for at most 120 seconds.
PROCESSES = (1, 2, 4, 8, 16, 64, 256)  # numbers of ranks that the scaling table has by default
UNITS = (("days", 86400), ("hours", 3600), ("minutes", 60), ("seconds", 1))
ERRORS = {"predicted": "predicted", "expected": "±25 %", "measured": "±10 %"}
DGC_RATIO = 0.1  # share of gradient entries that DGC (deep gradient compression) sends by default


def run(config: PlanConfig) -> int:
    """Print the predicted costs of a run; returns the exit code."""
    plan = predict(config)
    if config.json:
        print(json.dumps(plan, indent=1))
        return 0
    scales = config.details or config.processes is not None or plan["ranks"] > 1
    Console(highlight=False, markup=False, emoji=False).print(*tables(plan, scales=scales))
    print(f"\n{plan['answer']}")
    return 0


def predict(config: PlanConfig) -> dict[str, Any]:
    """Predict the costs of a run; raises UserError if the GPU or the interconnect is unknown."""
    if config.interconnect.lower() not in LINKS:
        raise UserError(f"interconnect={config.interconnect} is not known.", nearest(config.interconnect, LINKS))
    card = card_of(config.device)
    channels, num_classes = image_facts(config.data)
    architecture = config.model.architecture(config.schedule.final_resolution, channels, num_classes)
    schedule, settings = config.schedule.build(), config.trainer_settings()
    kind, count = ("cuda", count_cards(config.devices)) if card is not None else count_devices(config.devices)
    partition = settings.partition(architecture.stddev_group, (phase.batch for phase in schedule.phases), world_size=1)
    memory: int | None
    with Console(stderr=True, highlight=False).status("Measuring a few steps") as status:
        if card is not None:
            precision = card.precision(config.precision)
            facts = {"device": str(config.device).lower(), "name": card.name}
            settings, cuda = replace(settings, precision=precision), torch.device("cuda")
            times = StepTimes(settings, architecture, cuda, card.speed(precision))
            found, memory = times.of_phases(schedule, seconds=0.0), card.memory_bytes
            note = f"Times are predicted from the data sheet ({card.name}, {precision}) by a formula fitted to an H200."
        else:
            device, exact = choose_device(kind), config.compute.deterministic
            configure_process(device, config.threads, one_thread=config.elastic, deterministic=exact)
            seconds = CALIBRATION_SECONDS if config.calibrate else None
            times, precision = StepTimes(settings, architecture, device), precision_on(device, config.precision)
            found = times.of_phases(schedule, partition.largest_local_batch, seconds=seconds)
            facts, memory = hardware(device), free_memory(device)
            note = "Times are estimated from FLOPs and the speed of matrix products; calibrate=true measures steps."
            if found.measured:
                side = max(found.measured)
                note = f"Times with * were measured, up to {side}x{side}. Other times are estimated from FLOPs."
        known = (card.watts for card in CARDS.values() if re.search(rf"{card.name}\b", facts["name"]))
        ranks, counter = count * config.distributed.nnodes, CostCounter(architecture, settings.loss, precision)
        watts, rows, loads = next(known, OTHER_WATTS[kind]), list[dict[str, Any]](), list[Load]()
        for phase, steps in zip(schedule.phases, schedule.steps(), strict=True):
            if steps:
                status.update(f"Counting the work at {phase.resolution}x{phase.resolution}")
                factor = extra(card is not None and config.model.features is not None, phase.resolution)
                cost, taken = counter.cost(phase), factor * found.seconds_per_image[phase.index] * phase.batch
                cost["memory_bytes"] += NCCL_BYTES * (kind == "cuda" and ranks > 1)
                by = "measured" if phase.resolution in found.measured else "predicted" if kind == "cuda" else "expected"
                row = {
                    "phase": phase.name,
                    "resolution": phase.resolution,
                    "fading": phase.fading,
                    "images": min(phase.end, schedule.total) - phase.start,
                    "steps": steps,
                    "batch": phase.batch,
                    "learning_rate_g": phase.learning_rate_g,
                    "learning_rate_d": phase.learning_rate_d,
                    "time_is": by,
                    "milliseconds_per_step": 1000 * taken,
                    "hours": steps * taken / 3600,
                    "energy_kwh": steps * taken / 3600 * watts / 1000,
                    "flops": steps * cost["flops_per_step"],
                }
                rows.append(row | cost)
                fixed = min(times.expected(phase.resolution, 0), taken)
                group = min(config.model.stddev_group, phase.batch)
                loads.append(Load(steps, phase.batch, group, taken, fixed, tuple(cost["parameters"].values())))
    ratio = config.gradients.ratio if isinstance(config.gradients, DgcConfig) else DGC_RATIO
    link, processes = LINKS[config.interconnect.lower()], sorted({*(config.processes or PROCESSES), ranks})
    total = {key: sum(row[key] for row in rows) for key in ("images", "steps", "hours", "energy_kwh")}
    there = "" if memory is None else f"; the device has {memory / 2**30:.1f} GiB"
    most = {"memory_bytes": max(row["memory_bytes"] for row in rows), "device_memory_bytes": memory}
    runs = [
        Cluster(link, reduction, ratio, scaling).run(loads, devices)
        for scaling, devices, reduction in product(Scaling, processes, Reduction)
    ]
    plan = {
        "name": config.name,
        "hardware": facts,
        "ranks": ranks,
        "versions": versions(),
        "parameters": {"generator": count_parameters(counter.g), "discriminator": count_parameters(counter.d)},
        "watts": watts,
        "phases": rows,
        "total": {**total, "exaflops": sum(row["flops"] for row in rows) / 1e18, **most},
        "scaling": {"interconnect": config.interconnect, "link": link._asdict(), "ratio": ratio, "runs": runs},
        "notes": [
            f"Images: {channels} channels, {num_classes} classes. "
            "For images that are not prepared, data.channels= (default 3) is the number of channels.",
            f"{note} Times do not include start-up, grids, checkpoints and evaluations.",
            f"Memory holds weights, gradients, Adam's moments, a batch's activations, and NCCL on several GPUs{there}. "
            "If memory does not suffice, training uses smaller micro-batches. "
            + times.larger_batches(schedule.phases[-1], memory),
            f"Energy: a device takes {watts:g} W. The energy of hosts, cooling and network is not included.",
            "Scaling: devices like this one form a ring, and do not compute while they communicate. Strong scaling "
            "divides the batch among devices, in whole groups of minibatch stddev. Weak scaling gives each device a "
            "full batch. Where the column comm. is above 50 %, a step spends most of its time on communication.",
        ],
    }
    return plan | {"answer": answer(plan)}


def answer(plan: dict[str, Any]) -> str:
    """Return one line with the final resolution, the number of images, the time and the memory of the run."""
    last, total, ranks = plan["phases"][-1], plan["total"], plan["ranks"]
    error = next(text for how, text in ERRORS.items() if any(row["time_is"] == how for row in plan["phases"]))
    seconds = 3600 * next(run["hours"] for run in plan["scaling"]["runs"] if run["devices"] == ranks)
    unit, length = next(((unit, length) for unit, length in UNITS if seconds >= 2 * length), UNITS[-1])
    name = re.sub(r"^NVIDIA |GeForce |\(R\)|\(TM\)| CPU| @.*| Processor", "", plan["hardware"]["name"])
    text = f"{last['resolution']}x{last['resolution']} after {total['images']:,} images: about "
    text += f"{float(f'{seconds / length:.2g}'):,g} {unit} of steps on {f'{ranks} x' if ranks > 1 else 'one'} {name}"
    needed, there = total["memory_bytes"], total["device_memory_bytes"] or inf
    memory = f"{needed / 1e9:.2g} GB" if needed >= 1e8 else f"{needed / 1e6:.2g} MB"
    enough = "" if needed <= there else f" of {there / 1e9:.2g} GB, so in smaller micro-batches"
    return f"{text} ({error}), {memory}{enough}"


def image_facts(config: DataConfig) -> tuple[int, int]:
    """The numbers of channels and classes; raises UserError if data.labels=true, but the images are not prepared."""
    if config.labels or (config.path is not None and is_pyramid(Path(config.path))):
        facts = facts_of(config)
        return facts.channels, facts.num_classes
    return config.channels or 3, 0


# ---- The tables are 80 columns wide.


def tables(plan: dict[str, Any], *, scales: bool) -> list[RenderableType]:
    """The tables and footnotes of a plan; if `scales` is true, also the tables of FLOPs and memory, and of scaling."""
    found = [time_table(plan), *([work_table(plan), scaling_table(plan["scaling"])] if scales else [])]
    return [*(Padding(table, (0, 0, 1, 0)) for table in found), Group(*map(Text, plan["notes"][: 4 + scales]))]


def time_table(plan: dict[str, Any]) -> Table:
    """The table with the schedule and the time of each phase."""
    total, kind = plan["total"], plan["hardware"]["device"].partition(":")[0]
    columns = "phase", "images", "batch", "rate", "steps", "ms/step", "time", "kWh"
    table = new_table(f"{plan['name']}, on one {kind} (*: measured)", *columns)
    for row in plan["phases"]:
        rates = dict.fromkeys(f"{row[key]:.3g}" for key in ("learning_rate_g", "learning_rate_d"))
        table.add_row(
            short_name(row),
            f"{row['images']:,}",
            str(row["batch"]),
            "/".join(rates),
            f"{row['steps']:,}",
            f"{three_digits(row['milliseconds_per_step'])}{' *' * (row['time_is'] == 'measured')}",
            duration(3600 * row["hours"]),
            three_digits(row["energy_kwh"]),
        )
    table.add_section()
    hours, energy = duration(3600 * total["hours"]), three_digits(total["energy_kwh"])
    table.add_row("total", f"{total['images']:,}", "", "", f"{total['steps']:,}", "", hours, energy)
    return table


def work_table(plan: dict[str, Any]) -> Table:
    """The table with the memory and FLOPs of each phase."""
    g, d = plan["parameters"]["generator"], plan["parameters"]["discriminator"]
    columns = "phase", "weights in use", "gradient bytes", "memory", "FLOP per image", "FLOP in all"
    table = new_table(f"Work and memory of G ({g:,} parameters) and D ({d:,} parameters)", *columns)
    for row in plan["phases"]:
        sizes = sum(row["parameters"].values()), row["gradient_bytes"], row["memory_bytes"]
        table.add_row(short_name(row), *map(with_prefix, (*sizes, row["flops_per_step"] / row["batch"], row["flops"])))
    table.add_section()
    peak, flops = with_prefix(plan["total"]["memory_bytes"]), with_prefix(1e18 * plan["total"]["exaflops"])
    table.add_row("worst, sum", "", "", peak, "", flops)
    return table


def scaling_table(scaling: dict[str, Any]) -> Table:
    """The table with the training time on several devices, for strong and weak scaling."""
    names, runs = ("time", "device\nhours", "effi-\nciency", "comm."), scaling["runs"]
    title = f"Scaling on {scaling['interconnect']}: {scaling['link']['source']}"
    table = new_table(title, "n", "gradients", *names, *names)
    table.add_row("", "", "strong", "", "", "", "weak", "", "", "")
    for pair in zip(runs[: len(runs) // 2], runs[len(runs) // 2 :], strict=True):
        cells = []
        for run in pair:
            cells += [duration(3600 * run["hours"]), three_digits(run["device_hours"])]
            cells += [f"{100 * run[part]:.0f} %" for part in ("efficiency", "communication")]
        kind = pair[0]["reduction"]
        name = f"dgc {100 * scaling['ratio']:g} %" if kind == Reduction.dgc else kind
        table.add_row(str(pair[0]["devices"]) if kind == Reduction.fp32 else "", name, *cells)
    return table


def short_name(row: dict[str, Any]) -> str:
    """The name of a phase in tables, such as '16 fade'."""
    return f"{row['resolution']} {'fade' if row['fading'] else 'stable'}"


def with_prefix(value: float) -> str:
    """Format `value` with three digits and an SI prefix (k, M, G …)."""
    power = int(log10(max(value, 1.0)) / 3 + 1e-9)
    return f"{three_digits(value / 1000**power)}{['', 'k', 'M', 'G', 'T', 'P', 'E', 'Z'][power]}"
