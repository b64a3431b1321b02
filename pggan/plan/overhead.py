"""How long a run does something other than updates: its start, grids, ticks and checkpoints, each measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pggan.checkpoints.interval import images_between, seconds_between
from pggan.checkpoints.write import take_snapshot, write_checkpoint
from pggan.config import CheckpointConfig, PlanConfig
from pggan.core.intervals import multiples_between
from pggan.core.schedule import Phase, Schedule
from pggan.optim.reducer import Parts
from pggan.optim.state import State
from pggan.plan.calibration import MEASURED, Timing
from pggan.plan.phases import PhaseCost, halfway
from pggan.run.previews import Previews
from pggan.run.report import NullReporter
from pggan.run.run_dir import create_run_dir
from pggan.run.tensorboard import TensorBoardWriter
from pggan.sampling.images import Pixels

SCALARS = 30  # of a tick, about


class _PicturesOnly(NullReporter):
    """A reporter for pictures."""

    def __init__(self, writer: TensorBoardWriter) -> None:
        self._writer = writer

    def picture(self, tag: str, picture: Pixels, images: int) -> None:
        self._writer.picture(tag, picture, images)


@dataclass(frozen=True)
class Overhead:
    """Seconds of a whole run."""

    start: float  # with the first grids, and what ends even the shortest run
    grids: float
    ticks: float
    checkpoints: float

    @property
    def seconds(self) -> float:
        return self.start + self.grids + self.ticks + self.checkpoints


class OverheadProbe:
    """Does once in `folder`, with a `state` that has been trained to the end, what a run does again and again."""

    def __init__(
        self, config: PlanConfig, state: State, extra_state: Parts, device: torch.device, folder: Path
    ) -> None:
        """Args: extra_state: of the gradient reducer, for the checkpoint."""
        self.config, self.state, self.extra_state, self.device, self.folder = config, state, extra_state, device, folder
        self.schedule = config.schedule.build()
        create_run_dir(folder)
        self.writer = TensorBoardWriter(folder, first=0)
        self.previews = Previews(config.monitor, self.schedule, folder / "samples", _PicturesOnly(self.writer))

    def overhead(
        self, costs: Sequence[PhaseCost], timings: Sequence[Timing], *, start: float, comparing: float
    ) -> Overhead:
        """What comes to the updates of the whole run.

        Args: start: seconds that every run takes; comparing: of ranks comparing their weights, at every tick.
        """
        every, total = self.config.monitor.grid_images, self.schedule.total
        each, grids = self.grid_seconds(costs, timings), 0.0
        for cost in costs:
            last = cost is costs[-1]
            shown = multiples_between(every, cost.phase.start, total - 1 if last else cost.phase.end)
            grids += (shown + last) * each[cost.phase.resolution]  # the end of the run has one in any case
        updating = sum(cost.updates * timing.seconds for cost, timing in zip(costs, timings, strict=True))
        checkpoints = checkpoint_count(self.config.checkpoint, self.schedule, updating + grids)
        ticks = -(-total // self.config.monitor.tick_images) * (self.tick_seconds() + comparing)
        found = Overhead(start, grids, ticks, checkpoints * self.checkpoint_seconds(costs[-1].phase))
        self.writer.close()
        return found

    def grid_seconds(self, costs: Sequence[PhaseCost], timings: Sequence[Timing]) -> dict[int, float]:
        """Of a grid of fakes by resolution; where updates were not measured, the last measured grid is scaled up."""
        work = self.state.g_ema.architecture.multiply_adds
        found: dict[int, float] = {}
        largest = 0
        for cost, timing in zip(costs, timings, strict=True):
            side = cost.phase.resolution
            if timing.source == MEASURED:
                found[side], largest = self.one_grid(halfway(cost.phase)), side
            elif side not in found:
                found[side] = found[largest] * work(side) / work(largest)
        return found

    def one_grid(self, phase: Phase) -> float:
        """Seconds from latents to the files."""
        start = time.perf_counter()
        self.previews.show_fakes(self.state.g_ema, phase, 0)
        return time.perf_counter() - start

    def tick_seconds(self) -> float:
        """Of the numbers of a tick on their way into TensorBoard's file."""
        start = time.perf_counter()
        for number in range(SCALARS):
            self.writer.scalar(f"tick/{number}", 0.0, 0)
        self.writer.flush()
        return time.perf_counter() - start

    def checkpoint_seconds(self, phase: Phase) -> float:
        """Training waits for the copy; writing is done beside it, which takes time away from it on a CPU only."""
        start = time.perf_counter()
        snapshot = take_snapshot(self.state, phase, {}, extra_state=self.extra_state)
        copied = time.perf_counter()
        write_checkpoint(self.folder, snapshot)
        return (time.perf_counter() if self.device.type == "cpu" else copied) - start


def checkpoint_count(config: CheckpointConfig, schedule: Schedule, seconds: float) -> int:
    """How many are written in a run that takes about `seconds`."""
    last = schedule.total - 1  # what is due at the end is one with the checkpoint that the end has in any case
    by_images = last // images_between(config)
    by_time = int(seconds / seconds_between(config))
    return max(by_images, by_time) + sum(count <= last for count in config.milestone_images(schedule)) + 1
