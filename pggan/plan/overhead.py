"""How long a run does something other than updates: its start, grids, ticks and checkpoints, each measured."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pggan.checkpoints.interval import images_between, seconds_between
from pggan.checkpoints.read import Parts
from pggan.checkpoints.write import take_snapshot, write_checkpoint
from pggan.config import PHASES, CheckpointConfig, PlanConfig
from pggan.config.notation import parse_grid
from pggan.core.schedule import Phase, Schedule
from pggan.plan.calibration import MEASURED, Timing
from pggan.plan.phases import PhaseCost
from pggan.run.run_dir import create_run_dir
from pggan.run.tensorboard import Board
from pggan.sampling.images import contact_sheet, save_png, to_bytes
from pggan.sampling.latents import seed_latents
from pggan.training.cost.flops import halfway
from pggan.training.state import State

SCALARS = 30  # of a tick, about


@dataclass(frozen=True)
class Rest:
    """Seconds of a whole run."""

    start: float  # with the first grids, and what ends even the shortest run
    grids: float
    ticks: float
    checkpoints: float

    @property
    def seconds(self) -> float:
        return self.start + self.grids + self.ticks + self.checkpoints


class Chores:
    """Does once in `folder`, with a `state` that has been trained to the end, what a run does again and again."""

    def __init__(self, config: PlanConfig, state: State, kept: Parts, device: torch.device, folder: Path) -> None:
        """Args: kept: what a checkpoint holds besides the state."""
        self.config, self.state, self.kept, self.device, self.folder = config, state, kept, device, folder
        self.schedule = config.schedule.build()
        create_run_dir(folder)
        self.board = Board(folder, first=0)

    def rest(self, costs: Sequence[PhaseCost], timings: Sequence[Timing], *, start: float, comparing: float) -> Rest:
        """What comes to the updates of the whole run.

        Args: start: seconds that every run takes; comparing: of processes comparing their weights, at every tick.
        """
        every, total = self.config.monitor.grid_images, self.schedule.total
        each, grids = self.grid_seconds(costs, timings), 0.0
        for cost in costs:
            last = cost is costs[-1]
            shown = (total - 1 if last else cost.phase.end) // every - cost.phase.start // every
            grids += (shown + last) * each[cost.phase.resolution]  # the end of the run has one in any case
        updating = sum(cost.updates * timing.seconds for cost, timing in zip(costs, timings, strict=True))
        checkpoints = checkpoint_count(self.config.checkpoint, self.schedule, updating + grids)
        ticks = -(-total // self.config.monitor.tick_images) * (self.tick_seconds() + comparing)
        found = Rest(start, grids, ticks, checkpoints * self.checkpoint_seconds(costs[-1].phase))
        self.board.close()
        return found

    def grid_seconds(self, costs: Sequence[PhaseCost], timings: Sequence[Timing]) -> dict[int, float]:
        """Of a grid of fakes by resolution; where updates were not measured, the last measured grid is scaled up."""
        work = self.state.average.architecture.multiply_adds
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
        columns, rows = parse_grid(self.config.monitor.grid, "monitor.grid")
        average = self.state.average
        start = time.perf_counter()
        latents = seed_latents(list(range(columns * rows)), average.architecture.latent_size).to(self.device)
        classes = average.architecture.labels
        labels = torch.zeros(len(latents), classes, device=self.device) if classes else None
        with torch.no_grad():
            images = average(latents, labels, phase.resolution, phase.alpha)
        picture = contact_sheet(to_bytes(images), columns, self.schedule.final_resolution)
        save_png(picture, self.folder / "samples" / "fakes.png")
        self.board.picture("fakes", picture, 0)
        return time.perf_counter() - start

    def tick_seconds(self) -> float:
        """Of the numbers of a tick on their way into TensorBoard's file."""
        start = time.perf_counter()
        for number in range(SCALARS):
            self.board.scalar(f"tick/{number}", 0.0, 0)
        self.board.flush()
        return time.perf_counter() - start

    def checkpoint_seconds(self, phase: Phase) -> float:
        """Training waits for the copy; writing is done beside it, which takes time away from it on a CPU only."""
        start = time.perf_counter()
        snapshot = take_snapshot(self.state, phase, {}, more=self.kept)
        copied = time.perf_counter()
        write_checkpoint(self.folder, snapshot)
        return (time.perf_counter() if self.device.type == "cpu" else copied) - start


def checkpoint_count(config: CheckpointConfig, schedule: Schedule, seconds: float) -> int:
    """How many are written in a run that takes about `seconds`."""
    last = schedule.total - 1  # what is due at the end is one with the checkpoint that the end has in any case
    by_images = last // images_between(config)
    by_time = int(seconds / seconds_between(config))
    counts: list[int] = [phase.end for phase in schedule.phases] if config.milestones == PHASES else config.milestones
    return max(by_images, by_time) + sum(count <= last for count in counts) + 1
