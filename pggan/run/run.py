"""One run from its start, in one of its processes: found, checked, announced, trained."""

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pggan.checkpoints.broadcast import share_kept, share_state
from pggan.checkpoints.resume import Start, check_changes, check_networks, find_start, transfer
from pggan.checkpoints.write import Saver, refused_by_disk
from pggan.config import TrainConfig
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import sweep
from pggan.core.schedule import Schedule
from pggan.core.signals import Interruption
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.stream.loader import budget_bytes
from pggan.data.stream.open import open_data
from pggan.data.stream.reals import RealStream
from pggan.distributed.devices import available_cores, choose_compute, records, set_up
from pggan.distributed.membership import division_of
from pggan.distributed.process_group import World
from pggan.distributed.watchdog import Watchdog
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.networks.networks import count_parameters
from pggan.networks.numerics import Compute
from pggan.run.disk_space import disk_need, require_disk
from pggan.run.lock import claimed
from pggan.run.loop import Trainer
from pggan.run.report import Report, Silence
from pggan.run.run_dir import choose_run_dir, code_in_use, create_run_dir, describe, write_config
from pggan.training.cost.memory_fit import fit, free_bytes
from pggan.training.gradients.batch_partition import Division
from pggan.training.gradients.build import build_exchange, compresses
from pggan.training.state import State, new_state
from pggan.training.step_runner import Stepper

# What the system says when it no longer takes what is written.
REFUSED_WRITES = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)

# What may differ between the processes of a run: where they are, and what the first one alone decides.
OWN_KEYS = ("run_dir", "workers.address")


@dataclass(frozen=True)
class Setting:
    """All that a run is made of before there is a state."""

    run_dir: Path
    schedule: Schedule
    pyramid: ImagePyramid
    architecture: Architecture
    description: dict[str, Any]
    start: Start
    remarks: list[str]


def run(config: TrainConfig, world: World) -> int:
    """Train to the end of the schedule, or go on with it; returns the exit code."""
    description = describe(config)
    world.require_same(facts(description))
    set_up(world.device, config.precision)
    if config.elastic and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # another number of threads adds up in another order
    chosen = ""
    with world.together():  # refuses what can't be, before anything expensive
        division, loss = division_of(config, world.size, world.rank), build_loss(config.loss)
        compute = choose_compute(config.precision, config.compute, world.device)
        records(config.compute, world.device)
        if world.is_first:
            chosen = str(choose_run_dir(config))
    run_dir = Path(world.tell(chosen))
    with ExitStack() as stack:
        interruption = stack.enter_context(Interruption(at_once=True))
        watchdog = stack.enter_context(Watchdog(world, config.workers.patience_seconds, teller(run_dir)))
        with world.together():
            if world.is_first:
                stack.enter_context(claimed(run_dir))
        setting = look_around(config, description, run_dir, world)
        state, remarks = begin(config, setting, compute, world)
        stepper, memory = stepper_for(config, setting, state, loss, compute=compute, division=division, world=world)
        share_kept(setting.start.checkpoint, stepper.exchange, world)
        disk = stack.enter_context(writing(config, setting, state, world))
        report = stack.enter_context(
            Report(run_dir, setting.schedule, setting.architecture, world) if world.is_first else Silence()
        )
        saver = stack.enter_context(Saver(run_dir, config.checkpoint.keep))
        introduce(report, state, setting, config, {"Disk": disk, "Memory": memory})
        if world.size == 1 and config.gradients["name"] != "dense":
            remarks.append(f"One process sends no gradients: gradients={config.gradients['name']} has nothing to do.")
        for remark in [*remarks, *idle_cores(config, division, world, available_cores())]:
            report.line(remark)
        report.begin(state.images)
        stepper.notice = report.line
        trainer = Trainer(
            config,
            setting.schedule,
            stepper,
            stream_for(config, setting, division, world),
            world=world,
            watchdog=watchdog,
            report=report,
            saver=saver,
            notes={"config": setting.description, "data": setting.pyramid.fingerprint},
        )
        interruption.at_once = False
        try:
            return trainer.train(interruption)
        finally:
            stepper.forget()  # recordings hold on to the connections, which could not be closed


# ---- finding and checking ----------------------------------------------------------------------------------


def idle_cores(config: TrainConfig, division: Division, world: World, cores: int) -> list[str]:
    """What to say when elastic training, with its one thread per process, could use more of this machine's `cores`."""
    useful = min(cores, *(division.shards(phase.batch) for phase in config.schedule.build().phases))
    if not config.elastic or world.device.type != "cpu" or useful <= world.size or torch.get_num_threads() > 1:
        return []
    return [
        f"Elastic training takes one thread per process: devices=cpu:{useful} would use {useful} of the {cores} cores "
        "here, and not change a bit."
    ]


def look_around(config: TrainConfig, description: dict[str, Any], run_dir: Path, world: World) -> Setting:
    """Where to start, and with what; raises UserError when that does not go together."""
    start, schedule, remarks = Start(None, []), config.schedule.build(), []
    with world.together():
        if world.is_first:
            for directory in (run_dir, run_dir / "checkpoints", run_dir / "samples"):
                sweep(directory)
            start = find_start(config.resume, run_dir)
    pyramid = open_everywhere(config, schedule, world)
    world.require_same({"set of images (checksum)": pyramid.fingerprint})
    labels = len(pyramid.class_names or ()) if config.data.labels else 0
    architecture = config.model.architecture(schedule.final_resolution, pyramid.channels, labels)
    with world.together():
        remarks += start.remarks
        if start.checkpoint is not None:
            check_networks(start.checkpoint, architecture)
            remarks += check_changes(
                start.checkpoint, description, pyramid.fingerprint, schedule, allowed=config.allow_changes
            )
    return Setting(run_dir, schedule, pyramid, architecture, description, start, remarks)


def open_everywhere(config: TrainConfig, schedule: Schedule, world: World) -> ImagePyramid:
    """The images, prepared if need be: on a disk of all machines once; one process per machine checks them."""
    largest_batch = max(phase.batch for phase in schedule.phases)
    unchecked = replace(config.data, verify=False)
    with world.together():
        if world.is_first and world.size > world.local_size:  # before those of other machines find nothing, too
            open_data(unchecked, schedule.final_resolution, largest_batch)
    with world.together():
        if world.local_rank == 0:
            pyramid = open_data(config.data, schedule.final_resolution, largest_batch)
    with world.together():
        if world.local_rank > 0:
            pyramid = open_data(unchecked, schedule.final_resolution, largest_batch)
    return pyramid  # type: ignore[possibly-undefined]


def facts(description: Mapping[str, Any]) -> dict[str, Any]:
    """What has to be the same in all processes, by name."""
    versions = description["versions"]
    keys = {key: value for key, value in _flat(description) if not key.startswith("versions.") and key not in OWN_KEYS}
    return {"code": code_in_use(), "torch": versions["torch"], **keys}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


# ---- state and steps ---------------------------------------------------------------------------------------


def begin(config: TrainConfig, setting: Setting, compute: Compute, world: World) -> tuple[State, list[str]]:
    """The state to go on from, the same in all processes, and what there is to say about it."""
    half = compute.dtype is torch.float16
    state = new_state(
        setting.architecture,
        config.optimizer,
        config.seed,
        world.device,
        half=half,
        sparse=compresses(config.gradients, world),
    )
    remarks, checkpoint = [*setting.remarks], setting.start.checkpoint
    with world.together():
        if checkpoint is not None:
            checkpoint.restore(state)
            remarks.insert(0, f"Going on from {state.images:,} images ({checkpoint.directory}).")
            if config.init_from is not None:
                remarks.append("init_from= was for the beginning of this run, and is not looked at again.")
        elif config.init_from is not None and world.is_first:
            remarks += transfer(config.init_from, state)
    share_state(state, world)
    return state, remarks


def stepper_for(
    config: TrainConfig,
    setting: Setting,
    state: State,
    loss: Loss,
    *,
    compute: Compute,
    division: Division,
    world: World,
) -> tuple[Stepper, str]:
    """What takes the steps, and a line about the memory they need.

    Raises UserError when there is not enough of it.
    """
    device = world.device

    @lru_cache
    def rows(batch: int) -> Tensor:
        return torch.from_numpy(division.rows(batch)).to(device)

    exchange = build_exchange(config.gradients, state, config.optimizer, world=world, division=division)
    record = records(config.compute, device) and not compresses(config.gradients, world)
    free = free_bytes(device, world.local_size)
    if free is not None and device.type == "cuda":
        free -= budget_bytes(config.data.device_budget_mib, device)  # images live there, too
    memory, micro_batches = fit(
        setting.architecture,
        setting.schedule,
        loss,
        optimizer=config.optimizer,
        compute=compute,
        device=device,
        free=world.lowest(free),
        division=division,
        flat_tensors=exchange.flat_tensors,
        recorded=record,
        every_phase=setting.start.checkpoint is None,  # once per run, for people
    )
    if config.elastic:  # a pass is a shard
        batches = {(phase.resolution, phase.batch) for phase in setting.schedule.phases}
        micro_batches = {key: division.pass_size(key[1]) or key[1] for key in batches}
    stepper = Stepper(
        state,
        loss,
        compute,
        record=record,
        notice=print,
        micro_batches=micro_batches,
        rehearse=device.type == "cuda" and not config.elastic,
        exchange=exchange,
        rows=rows if world.size > 1 else None,
        anywhere=lambda here: any(world.gather("yes" * here)),
    )
    return stepper, memory


def stream_for(config: TrainConfig, setting: Setting, division: Division, world: World) -> RealStream:
    """The images of this process."""
    return RealStream(
        setting.pyramid,
        config.seed,
        world.device,
        config.data.mirror,
        config.data.labels,
        budget=budget_bytes(config.data.device_budget_mib, world.device),
        phase_at=setting.schedule.at,
        **({"share": division.rows} if world.size > 1 else {}),
    )


# ---- writing and telling -----------------------------------------------------------------------------------


@contextmanager
def writing(config: TrainConfig, setting: Setting, state: State, world: World) -> Iterator[str]:
    """The run directory, made and described, with a line about the disk; the first process alone writes.

    Raises UserError when there is not enough space, then or later.
    """
    if not world.is_first:
        with world.together():
            pass
        yield ""
        return
    run_dir = setting.run_dir
    need = disk_need(
        setting.schedule,
        checkpoints=config.checkpoint,
        monitor=config.monitor,
        state=state,
        pyramid=setting.pyramid,
        description=setting.description,
        keepers=world.size if compresses(config.gradients, world) else 1,
    )
    try:
        with world.together():
            disk = require_disk(run_dir, need)
            create_run_dir(run_dir)
            write_config(run_dir, setting.description)
        yield disk
    except OSError as error:
        ours = error.filename is not None and Path(str(error.filename)).is_relative_to(run_dir)
        if error.errno in REFUSED_WRITES or ours:
            raise refused_by_disk(run_dir, error, need.checkpoint) from error
        raise


def introduce(report: Silence, state: State, setting: Setting, config: TrainConfig, needs: dict[str, str]) -> None:
    """Say what is about to happen, and what it needs."""
    schedule, pyramid = setting.schedule, setting.pyramid
    report.line(f"Run directory  {setting.run_dir}")
    report.line(
        f"Data           {pyramid.images:,} images, {pyramid.channels} channels, up to {pyramid.resolution}x"
        f"{pyramid.resolution}"
    )
    report.line(
        f"Networks       G {count_parameters(state.g.network):,}  D {count_parameters(state.d.network):,} "
        f"parameters, {config.loss['name']}"
    )
    report.line(
        f"Schedule       {schedule.first_resolution}x{schedule.first_resolution} to {schedule.final_resolution}x"
        f"{schedule.final_resolution}, {len(schedule.phases)} phases, {schedule.total:,} images"
    )
    for name, need in needs.items():
        report.line(f"{name:<14} {need}")
    report.line(f"Watch          tensorboard --logdir {setting.run_dir}")


def teller(run_dir: Path) -> Callable[[str], None]:
    """How a process tells what the first one may no longer be able to: on its own console, and in train.log."""

    def tell(text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        with suppress(OSError), (run_dir / "train.log").open("a") as log:  # on another machine, it may not be there
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')}  {text}\n")

    return tell
