"""How long a run takes: its steps, and the start, grids, ticks, checkpoints and evaluations, measured or assumed."""

import os
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from pggan.checkpoints.write import MINUTES_SHARE, CheckpointInterval, take_snapshot, write_checkpoint
from pggan.config import CheckpointConfig, PlanConfig, TrainConfig
from pggan.config.describe import to_plain
from pggan.core.architecture import Architecture
from pggan.core.atomic_io import make_directory
from pggan.core.environment import child_variables
from pggan.core.errors import UserError
from pggan.core.formatting import Log
from pggan.core.intervals import lies_between, multiples_between
from pggan.core.schedule import Schedule
from pggan.distributed.process_group import RANK_VARIABLES, ProcessGroup
from pggan.networks.networks import Generator
from pggan.optim.batch_partition import BatchPartition
from pggan.performance.plan.calibration import (
    ASSUMED,
    EXTRAPOLATED,
    MEASURED,
    Calibration,
    Timing,
    write_noise,
)
from pggan.performance.plan.evaluations import evaluation_share
from pggan.performance.plan.phases import PhaseCost, halfway
from pggan.run.previews import Previews
from pggan.run.tensorboard import TensorBoardWriter
from pggan.training.timing import StepTimer, measure_phase_times

MIN_IMAGES = 16  # of noise, to load from
SCALARS = 30  # of a tick, about
NO_OVERHEAD = dict.fromkeys(("start", "grids", "ticks", "checkpoints", "evaluations"), 0.0)


class RunTime(NamedTuple):
    """How long a run takes, and how that is known."""

    timings: list[Timing]
    overhead: dict[str, float]  # seconds of everything else in the whole run, by kind
    devices: int  # that it runs on
    note: str


def measured_time(
    config: PlanConfig,
    architecture: Architecture,
    costs: list[PhaseCost],
    group: ProcessGroup,
    *,
    data: Path | None,
    log: Log,
) -> RunTime:
    """The time of every step, and of everything else that a run does, measured by all its ranks.

    Args: data: the prepared images of the run, if there are any; log: is told what is being measured.
    """
    with TemporaryDirectory(prefix="pggan-plan-") as name:
        noise, start = Path(name, "noise"), 0.0
        write_noise(noise, architecture, max(MIN_IMAGES, config.model.stddev_group * group.local_world_size))
        with group.collective_errors():
            if group.is_main:
                log("Measuring the start of a run")
                start = start_seconds(config, data or noise, Path(name, "start"), group)
        calibration = Calibration(config, architecture, costs, group, noise)
        try:
            timings = calibration.timings(log)
            log("Measuring grids, ticks and a checkpoint")
            overhead = {"start": start, **measured_overhead(config, calibration.run, Path(name, "run"), costs, timings)}
        finally:
            calibration.run.trainer.release_graphs()  # they hold on to connections, which could not be closed
        group.barrier()
    guessed = [cost.phase.name for cost, timing in zip(costs, timings, strict=True) if timing.source == EXTRAPOLATED]
    ranks = group.world_size
    together = f" by {ranks} ranks, which add up their gradients" if ranks > 1 else ""
    note = f"Time: real steps of every phase{together}, plus the start of a run, grids, ticks, checkpoints and "
    note += f"{evaluation_share(config)}."
    if guessed:
        note += f" Extrapolated by operations from the phase before: {', '.join(guessed)}."
    return RunTime(timings, overhead, ranks, note)


def assumed_time(
    config: PlanConfig, architecture: Architecture, device: torch.device, costs: list[PhaseCost]
) -> RunTime:
    """The time of every step on one device: from tflops=, or as the start of a run expects it there."""
    without = "Without the start, grids, ticks, checkpoints and"
    if config.tflops is not None:
        rate, note = config.tflops * 1e12, f"Time: from tflops={config.tflops:g}, at every resolution."
        timings = [Timing(cost.flops / rate, cost.flops / rate, 0.0, ASSUMED) for cost in costs]
        note += f" {without} {evaluation_share(config)}."
        return RunTime(timings, NO_OVERHEAD, 1, note)
    schedule = config.schedule.build()
    partition = BatchPartition.of(config, (phase.batch for phase in schedule.phases), world_size=1)
    found = measure_phase_times(config, architecture, schedule, partition, device=device, images=0)
    timings = []
    for phase in (cost.phase for cost in costs):
        seconds = found.seconds_per_image[phase.index] * phase.batch
        other = EXTRAPOLATED if found.measured else ASSUMED
        timings.append(Timing(seconds, seconds, 0.0, MEASURED if phase.resolution in found.measured else other))
    if found.measured:
        note = (
            f"Time: a few steps up to {max(found.measured)}x{max(found.measured)}, measured here as a run does at its "
        )
        note += "start; above that by their operations."
    else:
        note = "Time: by operations, from the rate of a matrix product here; a first guess."
    note += f" calibrate=true measures every phase. {without} {evaluation_share(config)}."
    if config.hours is not None:
        note += (
            f" hours={config.hours:g} were planned with other measurements of the same steps, which differ where the "
        )
        note += "machine does other work; a run plans its end anew all the time, and keeps to its hours."
    return RunTime(timings, NO_OVERHEAD, 1, note)


def start_seconds(config: PlanConfig, data: Path, folder: Path, group: ProcessGroup) -> float:
    """Seconds of a whole run of one step on `data`, in the new directory `folder`; raises UserError when it fails."""
    launched = (*RANK_VARIABLES, "TORCHELASTIC_")  # this process may be one of several itself
    variables = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    variables |= child_variables("train", shortened(config, data, folder, group))
    start = time.perf_counter()
    command = [sys.executable, "-m", "pggan"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    seconds = time.perf_counter() - start
    if ended.returncode:
        said = ended.stderr.strip().removeprefix("Error: ")
        raise UserError(f"A run of one step, for calibrate=true, failed: {said}", "Leave out calibrate=true.")
    return seconds


def shortened(config: PlanConfig, data: Path, folder: Path, group: ProcessGroup) -> dict[str, Any]:
    """The values of a run of one small step on this machine that is otherwise that of `config`."""
    keys = {field.name for field in fields(TrainConfig)}
    values = {key: value for key, value in to_plain(config).items() if key in keys}
    kind, count = group.device.type, group.local_world_size
    values["devices"] = (f"cpu:{count}" if kind == "cpu" else str(count)) if count > 1 else kind
    values["schedule"] |= {"total_images": 1, "batch": config.model.stddev_group * count, "batch_factor": 1}
    values["distributed"] |= {"nnodes": 1, "rdzv_endpoint": None}
    values["data"]["path"] = str(data)
    values["evaluation"]["metrics"] = []
    return values | {"run_dir": str(folder), "resume": "never", "init_from": None, "hours": None}


def measured_overhead(
    config: PlanConfig, run: StepTimer, folder: Path, costs: list[PhaseCost], timings: list[Timing]
) -> dict[str, float]:
    """Seconds of grids, ticks, checkpoints and evaluations in the run; nothing on other ranks than 0.  For all ranks.

    What recurs in a run is done once, with the trainer of `run` after its steps, in the new run directory `folder`.
    """
    group, state, schedule = run.group, run.trainer.state, config.schedule.build()
    generator = state.g.network
    assert isinstance(generator, Generator), "new_state makes it"
    group.barrier()
    began = time.perf_counter()
    group.require_equal_weights({"G": [*state.g.network.weights], "D": [*state.d.network.weights]})  # as at every tick
    tick = time.perf_counter() - began
    extra_state = run.trainer.reducer.extra_state()
    if not group.is_main:
        return {}
    make_directory(folder / "samples")
    writer = TensorBoardWriter(folder, first=0)
    began = time.perf_counter()
    for number in range(SCALARS):
        writer.scalar(f"tick/{number}", 0.0, 0)
    writer.flush()
    tick += time.perf_counter() - began
    previews = Previews(config.monitor, schedule, folder / "samples", writer.picture)
    work = state.g_ema.architecture.multiply_adds
    each: dict[int, float] = {}  # seconds of a grid by resolution
    grids, measured = 0.0, 0
    for cost, timing in zip(costs, timings, strict=True):
        side, last = cost.phase.resolution, cost is costs[-1]
        if timing.source == MEASURED:
            began, measured = time.perf_counter(), side
            previews.show_fakes(generator, state.g_ema, halfway(cost.phase), 0)
            each[side] = time.perf_counter() - began
        elif side not in each:
            each[side] = each[measured] * work(side) / work(measured)
        end = schedule.total - 1 if last else cost.phase.end
        shown = multiples_between(config.monitor.grid_images, cost.phase.start, end)
        grids += (shown + last) * each[side]  # the end of the run has one in any case
    writer.close()
    began = time.perf_counter()
    snapshot = take_snapshot(state, costs[-1].phase, {}, extra_state)
    if group.device.type == "cpu":  # elsewhere, training does not wait while a checkpoint is written
        write_checkpoint(folder, snapshot)
    checkpoint = time.perf_counter() - began
    updating = sum(cost.steps * timing.seconds for cost, timing in zip(costs, timings, strict=True))
    checkpoints = checkpoint * checkpoint_count(config.checkpoint, schedule, updating + grids)
    ticks = (multiples_between(config.monitor.tick_images, 0, schedule.total - 1) + 1) * tick  # one at the end
    return {"grids": grids, "ticks": ticks, "checkpoints": checkpoints}


def checkpoint_count(config: CheckpointConfig, schedule: Schedule, seconds: float) -> int:
    """The number of checkpoints of a run that takes about `seconds`."""
    last = schedule.total - 1  # what is due at the end is one with the checkpoint that the end has in any case
    interval = CheckpointInterval(0, config.every_images, config.every_minutes)
    late = int(seconds / (MINUTES_SHARE * interval.most_seconds))
    recurring = max(multiples_between(interval.between, 0, last), late)
    return recurring + sum(lies_between(count, 0, last) for count in config.milestone_images(schedule)) + 1
