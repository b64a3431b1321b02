"""`pggan plan`: what a run will take, found out without training it."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from pggan.config import DataConfig, PlanConfig
from pggan.config.describe import to_plain
from pggan.core.cpu import threads_per_rank
from pggan.core.devices import choose_device, count_devices, device_of_rank, use_one_thread
from pggan.core.errors import UserError
from pggan.data.format.pyramid import INDEX_FILE, ImagePyramid
from pggan.distributed.agent import launch
from pggan.distributed.membership import run_distributed
from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.losses import build_loss
from pggan.optim.batch_partition import BatchPartition
from pggan.plan.links import require_link
from pggan.plan.phases import phase_costs
from pggan.plan.run_time import assumed_time, log_to_stderr, measured_time
from pggan.plan.summary import summary
from pggan.plan.tables import tables
from pggan.training.compute_options import captures_graphs, compute_options, configure_process


def run(config: PlanConfig) -> int:
    """Print what the run of `config` will take; with calibrate=true, measured on as many ranks as the run would have."""
    require_link(config.network)
    info = rank_from_environment()
    if info is not None:
        device = partial(device_of_rank, config.devices, info.local_rank, info.local_world_size)
        return run_distributed(info, device, config.distributed.rdzv_timeout_seconds, partial(plan_on_rank, config))
    kind, count = count_devices(config.devices)
    size = count * config.distributed.nnodes
    config = replace(config, processes=sorted({*config.processes, size}))
    if size == 1 or not config.calibrate:
        return plan_on_rank(config, ProcessGroup.single_process(choose_device(kind)))
    BatchPartition.of(config, (phase.batch for phase in config.schedule.build().phases), size)
    config = replace(config, devices=f"cpu:{count}" if kind == "cpu" else str(count))
    threads = threads_per_rank(count, elastic=config.elastic)
    once = replace(config.distributed, max_restarts=0)
    return launch("plan", to_plain(config), count, once, threads=threads, log=log_to_stderr)


def plan_on_rank(config: PlanConfig, group: ProcessGroup) -> int:
    """The plan, on one of the ranks; rank 0 prints."""
    config = replace(config, processes=sorted({*config.processes, group.world_size}))
    device, loss, schedule = group.device, build_loss(config.loss), config.schedule.build()
    options = compute_options(config.precision, config.compute, device)
    captures_graphs(config.compute, device)  # refuses what is not there
    configure_process(device, config.precision)
    if config.elastic:
        use_one_thread()  # as in training
    channels, labels, data_note = image_facts(config.data)
    architecture = config.model.architecture(schedule.final_resolution, channels, labels)
    batches = (phase.batch for phase in schedule.phases)
    partition = BatchPartition.of(config, batches, group.world_size, group.rank)
    with Console(stderr=True, highlight=False, quiet=not group.is_main).status("Counting") as status:
        costs = phase_costs(
            architecture,
            schedule,
            loss,
            optimizer=config.optimizer,
            options=options,
            device=device,
            partition=partition,
            log=status.update,
        )
        if config.calibrate:
            spent = measured_time(config, architecture, group=group, costs=costs, log=status.update)
        else:
            spent = assumed_time(config, options, device, costs)
    if not group.is_main:
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
