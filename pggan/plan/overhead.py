"""How long a run does something other than updates: its start, grids, ticks and checkpoints, each measured."""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from pggan.checkpoints.interval import images_between, seconds_between
from pggan.checkpoints.write import take_snapshot, write_checkpoint
from pggan.config import CheckpointConfig, PlanConfig, TrainConfig
from pggan.config.describe import to_plain
from pggan.core.errors import UserError
from pggan.core.intervals import multiples_between
from pggan.core.schedule import Schedule
from pggan.distributed.agent import PARENT_VARIABLE, TASK_VARIABLE
from pggan.distributed.process_group import RANK_VARIABLES, ProcessGroup
from pggan.plan.calibration import MEASURED, TimedUpdates, Timing
from pggan.plan.phases import PhaseCost, halfway
from pggan.run.previews import Previews
from pggan.run.report import NullReporter
from pggan.run.run_dir import create_run_dir
from pggan.run.tensorboard import TensorBoardWriter
from pggan.sampling.images import Pixels

SCALARS = 30  # of a tick, about


class _PicturesOnly(NullReporter):
    def __init__(self, writer: TensorBoardWriter) -> None:
        self._writer = writer

    def picture(self, tag: str, picture: Pixels, images: int) -> None:
        self._writer.picture(tag, picture, images)


def start_seconds(config: PlanConfig, data: Path, folder: Path, group: ProcessGroup) -> float:
    """The time of a run of one update on `data`, from its command to its end, in the new run directory `folder`.

    Raises UserError when that run fails.
    """
    task = {"command": "train", "values": shortened(config, data, folder, group)}
    launched = (*RANK_VARIABLES, "TORCHELASTIC_")  # this process may be one of several itself
    variables = {name: value for name, value in os.environ.items() if not name.startswith(launched)}
    variables |= {TASK_VARIABLE: OmegaConf.to_yaml(OmegaConf.create(task)), PARENT_VARIABLE: str(os.getpid())}
    start = time.perf_counter()
    command = [sys.executable, "-m", "pggan.cli.worker"]
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    seconds = time.perf_counter() - start
    if ended.returncode:
        said = ended.stderr.strip().removeprefix("Error: ")
        raise UserError(f"A run of one update, for calibrate=true, failed: {said}", "Leave out calibrate=true.")
    return seconds


def shortened(config: PlanConfig, data: Path, folder: Path, group: ProcessGroup) -> dict[str, Any]:
    """The values of a run of one small update on this machine that is otherwise that of `config`."""
    keys = {field.name for field in fields(TrainConfig)}
    values = {key: value for key, value in to_plain(config).items() if key in keys}
    kind, count = group.device.type, group.local_world_size
    values["devices"] = (f"cpu:{count}" if kind == "cpu" else str(count)) if count > 1 else kind
    values["schedule"] |= {"total_images": 1, "batch": config.model.stddev_group * count, "batch_factor": 1}
    values["distributed"] |= {"nnodes": 1, "rdzv_endpoint": None}
    values["data"]["path"] = str(data)
    return values | {"run_dir": str(folder), "resume": "never", "init_from": None}


def measured_overhead(
    config: PlanConfig, run: TimedUpdates, folder: Path, costs: Sequence[PhaseCost], timings: Sequence[Timing]
) -> dict[str, float]:
    """Seconds of grids, ticks and checkpoints in the whole run; nothing on other ranks than 0.  Called by all ranks.

    What recurs in a run is done once, with the trainer of `run` after its updates, in the new run directory `folder`.
    """
    group, state, schedule = run.group, run.trainer.state, config.schedule.build()
    group.barrier()
    began = time.perf_counter()
    group.require_equal_weights({"G": [*state.g.network.weights], "D": [*state.d.network.weights]})  # as at every tick
    tick = time.perf_counter() - began
    extra_state = run.trainer.reducer.extra_state()
    if not group.is_main:
        return {}
    create_run_dir(folder)
    writer = TensorBoardWriter(folder, first=0)
    began = time.perf_counter()
    for number in range(SCALARS):
        writer.scalar(f"tick/{number}", 0.0, 0)
    writer.flush()
    tick += time.perf_counter() - began
    previews = Previews(config.monitor, schedule, folder / "samples", _PicturesOnly(writer))
    work = state.g_ema.architecture.multiply_adds
    each: dict[int, float] = {}  # seconds of a grid by resolution
    grids, measured = 0.0, 0
    for cost, timing in zip(costs, timings, strict=True):
        side, last = cost.phase.resolution, cost is costs[-1]
        if timing.source == MEASURED:
            began, measured = time.perf_counter(), side
            previews.show_fakes(state.g_ema, halfway(cost.phase), 0)
            each[side] = time.perf_counter() - began
        elif side not in each:
            each[side] = each[measured] * work(side) / work(measured)
        end = schedule.total - 1 if last else cost.phase.end
        shown = multiples_between(config.monitor.grid_images, cost.phase.start, end)
        grids += (shown + last) * each[side]  # the end of the run has one in any case
    writer.close()
    began = time.perf_counter()
    snapshot = take_snapshot(state, costs[-1].phase, {}, extra_state=extra_state)
    if group.device.type == "cpu":  # elsewhere, training does not wait while a checkpoint is written
        write_checkpoint(folder, snapshot)
    checkpoint = time.perf_counter() - began
    updating = sum(cost.updates * timing.seconds for cost, timing in zip(costs, timings, strict=True))
    checkpoints = checkpoint * checkpoint_count(config.checkpoint, schedule, updating + grids)
    ticks = -(-schedule.total // config.monitor.tick_images) * tick
    return {"grids": grids, "ticks": ticks, "checkpoints": checkpoints}


def checkpoint_count(config: CheckpointConfig, schedule: Schedule, seconds: float) -> int:
    """The number of checkpoints of a run that takes about `seconds`."""
    last = schedule.total - 1  # what is due at the end is one with the checkpoint that the end has in any case
    by_images = last // images_between(config)
    by_time = int(seconds / seconds_between(config))
    return max(by_images, by_time) + sum(count <= last for count in config.milestone_images(schedule)) + 1
