"""`pggan plan`: what a run will take, without training it."""

import json
import sys
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from pggan.config import DataConfig, PlanConfig, TrainConfig
from pggan.config.describe import to_plain
from pggan.core.cpu import threads_per_rank
from pggan.core.devices import choose_device, count_devices
from pggan.core.errors import UserError, nearest
from pggan.core.next_command import given_words, next_command
from pggan.data.pyramid import INDEX_FILE, ImagePyramid
from pggan.distributed.agent import launch
from pggan.distributed.process_group import ProcessGroup, rank_from_environment, run_distributed
from pggan.optim.batch_partition import BatchPartition
from pggan.performance.plan.device_table import DeviceSpec, device_spec
from pggan.performance.plan.phases import phase_costs
from pggan.performance.plan.prediction import predicted_time, prediction_notes
from pggan.performance.plan.run_time import assumed_time, measured_time
from pggan.performance.plan.scaling import LINKS
from pggan.performance.plan.summary import elsewhere, summary, this_machine
from pggan.performance.plan.tables import tables
from pggan.training.compute_options import configure_process
from pggan.training.trainer_factory import TrainerFactory


def run(config: PlanConfig) -> int:
    """Print what the run of `config` will take; with calibrate=true, measured on all ranks of that run."""
    if config.interconnect not in LINKS:
        raise UserError(f"There is no interconnect '{config.interconnect}'.", nearest(config.interconnect, LINKS))
    if config.device is not None:
        return predict_on(config, config.device.lower(), device_spec(config.device))
    if (info := rank_from_environment()) is not None:
        return run_distributed(info, config.devices, config.distributed.rdzv_timeout_seconds, partial(predict, config))
    kind, count = count_devices(config.devices)
    size = count * config.distributed.nnodes
    config = replace(config, processes=sorted({*config.processes, size}))
    if size == 1 or not config.calibrate:
        return predict(config, ProcessGroup.single_process(choose_device(kind)))
    BatchPartition.of(config, (phase.batch for phase in config.schedule.build().phases), size)
    config = replace(config, devices=f"cpu:{count}" if kind == "cpu" else str(count))
    threads = config.threads or threads_per_rank(count, elastic=config.elastic)
    once = replace(config.distributed, max_restarts=0)
    return launch("plan", to_plain(config), count, once, threads=threads, log=partial(print, file=sys.stderr))


def predict(config: PlanConfig, group: ProcessGroup) -> int:
    """Plan, on one of the ranks; rank 0 prints.  Returns the exit code."""
    config = replace(config, processes=sorted({*config.processes, group.world_size}))
    device = group.device
    factory = TrainerFactory.of(config, device, group.world_size)
    exact = config.compute.deterministic
    configure_process(device, config.precision, config.threads, one_thread=config.elastic, deterministic=exact)
    data, channels, num_classes, data_note = image_facts(config.data)
    architecture = config.model.architecture(config.schedule.final_resolution, channels, num_classes)
    with Console(stderr=True, highlight=False, quiet=not group.is_main).status("Counting") as status:
        costs = phase_costs(config, architecture, factory, group, status.update)
        if config.calibrate:
            spent = measured_time(config, architecture, costs, group, data=data, log=status.update)
        else:
            status.update("Measuring a few steps")
            spent = assumed_time(config, architecture, device, costs)
    if not group.is_main:
        return 0
    plan = summary(config, architecture, costs, spent, this_machine(device))
    return show(config, plan, data_note)


def predict_on(config: PlanConfig, key: str, card: DeviceSpec) -> int:
    """Plan the run of `config` on one `card`, called `key`, that need not be here.  Returns the exit code."""
    if (number := config.devices.rpartition(":")[2]).isdecimal() and int(number) > 1:
        problem = f"device={key} predicts steps of one card, not of devices={config.devices}."
        raise UserError(problem, "Leave out devices=: the table of speedups says what several would bring.")
    precision = card.precision(config.precision)
    factory = TrainerFactory.of(replace(config, precision=precision), torch.device("cuda"), 1)
    _, channels, num_classes, data_note = image_facts(config.data)
    architecture = config.model.architecture(config.schedule.final_resolution, channels, num_classes)
    group = ProcessGroup.single_process(torch.device("meta"))
    with Console(stderr=True, highlight=False).status("Counting") as status:
        costs = phase_costs(config, architecture, factory, group, status.update, memory=card.memory_bytes)
    spent, prediction = predicted_time(config, costs, card, precision, captured=factory.capture)
    plan = summary(config, architecture, costs, spent, elsewhere(key, card))
    plan["prediction"] = prediction
    plan["notes"] += prediction_notes(prediction)
    return show(config, plan, data_note)


def show(config: PlanConfig, plan: dict[str, Any], data_note: str) -> int:
    """Print a plan, and where the facts about the images are from."""
    plan["notes"].insert(0, data_note)
    if config.json:
        print(json.dumps(plan, indent=1))
    else:
        Console(highlight=False).print(*tables(plan))
        of_plans = {field.name for field in fields(PlanConfig)} - {field.name for field in fields(TrainConfig)}
        print(next_command("train", *given_words(of_plans)))
    return 0


def image_facts(config: DataConfig) -> tuple[Path | None, int, int, str]:
    """The pyramid that data.path names, if it is prepared; channels and classes, and a note of where they are from."""
    if config.path is not None and Path(config.path, INDEX_FILE).is_file():
        pyramid = ImagePyramid(Path(config.path))
        channels, num_classes = pyramid.channels, len(pyramid.class_names or ()) if config.labels else 0
        return pyramid.path, channels, num_classes, f"{channels} channels, {num_classes} classes, as in {pyramid.path}."
    if config.labels:
        remedy = "Prepare the data first (pggan prepare … labels=true), then give the pyramid as data.path=."
        raise UserError("data.labels=true, but the number of classes is not known.", remedy)
    if config.channels is not None:
        return None, config.channels, 0, f"{config.channels} channels, as data.channels says."
    return None, 3, 0, "3 channels, unless data.channels= or a prepared data.path= says otherwise."
