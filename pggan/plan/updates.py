"""Updates as a run makes them, on images of noise, timed."""

import time
from collections.abc import Callable
from functools import lru_cache
from math import ceil
from pathlib import Path
from statistics import mean

import numpy as np
import torch
from torch import Tensor

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.rng import Draws
from pggan.core.schedule import Phase
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.format.writer import PyramidWriter
from pggan.data.stream.loader import budget_bytes
from pggan.data.stream.reals import Indices, RealStream, whole_batch
from pggan.distributed.devices import records
from pggan.distributed.process_group import World
from pggan.losses.base import Loss
from pggan.networks.numerics import Compute
from pggan.run.metrics import Averages
from pggan.training.gradients.batch_partition import Division
from pggan.training.gradients.build import compresses
from pggan.training.gradients.reducer import Exchange
from pggan.training.state import State
from pggan.training.step_runner import STEPS_BEFORE_RECORDING, Stepper

DECAY = 0.999


class Updates:
    """Updates of one state, all made in the same way: by the processes of `world` together."""

    def __init__(
        self, state: State, stepper: Stepper, stream: RealStream, loss: Loss, *, world: World, record: bool
    ) -> None:
        self.state, self.stepper, self.stream, self.loss, self.world = state, stepper, stream, loss, world
        self.warmup = STEPS_BEFORE_RECORDING + 2 if record else 2  # the last of them tells the pace
        self.averages = Averages()

    def seconds(self, phase: Phase, least_steps: int, least_seconds: float) -> float:
        """Of an update of `phase`, mean over the interval of lazy penalties.

        Of each kind of steps it takes at least `least_steps`, and `least_seconds`.  Called by all processes.
        """
        interval = self.loss.interval
        self.state.reset_optimizers()
        self.state.images = (phase.start + phase.end) // 2  # the same in all processes, whatever each did before
        self.stepper.forget()
        found = [self._mean(phase, position, least_steps, least_seconds) for position in range(min(interval, 2))]
        self.averages.flush(self.world)
        return (found[0] + (interval - 1) * found[-1]) / interval

    def _mean(self, phase: Phase, position: int, least_steps: int, least_seconds: float) -> float:
        """Seconds of the updates at `position` in the interval of lazy penalties, 0 being the one with them."""
        pace = [self._one(phase, position, number) for number in range(self.warmup)][-1]
        count = self.world.tell(max(least_steps, ceil(least_seconds / pace)))
        return mean(self._one(phase, position, self.warmup + number) for number in range(count))

    def _one(self, phase: Phase, position: int, number: int) -> float:
        draws = Draws(0, (number * self.loss.interval + position) * phase.batch, self.world.device)
        start = time.perf_counter()
        self.world.agreed(0)
        watched = self.stepper.step(phase, self.stream.batch(phase, draws), draws, DECAY)
        self.averages.add(watched)
        wait_for(self.world.device)
        return time.perf_counter() - start


def lone_updates(
    config: PlanConfig,
    state: State,
    loss: Loss,
    compute: Compute,
    *,
    pyramid: ImagePyramid,
    device: torch.device,
    notice: Callable[[str], None],
) -> Updates:
    """By one process, of batches that it can take at once; nothing is exchanged."""
    record = records(config.compute, device)
    stepper = Stepper(state, loss, compute, record=record, notice=notice)
    return Updates(state, stepper, stream_of(config, pyramid, device), loss, world=World.alone(device), record=record)


def shared_updates(
    config: PlanConfig,
    state: State,
    loss: Loss,
    compute: Compute,
    *,
    exchange: Exchange,
    division: Division,
    pyramid: ImagePyramid,
    world: World,
    notice: Callable[[str], None],
) -> Updates:
    """By all processes, each with its part of the batch; gradients travel as in training."""
    record = records(config.compute, world.device) and not compresses(config.gradients, world)
    passes = {
        (phase.resolution, phase.batch): division.pass_size(phase.batch) for phase in config.schedule.build().phases
    }

    @lru_cache
    def rows(batch: int) -> Tensor:
        return torch.from_numpy(division.rows(batch)).to(world.device)

    stepper = Stepper(
        state,
        loss,
        compute,
        record=record,
        notice=notice,
        micro_batches={key: size for key, size in passes.items() if size is not None},
        exchange=exchange,
        rows=rows,
    )
    stream = stream_of(config, pyramid, world.device, division.rows)
    return Updates(state, stepper, stream, loss, world=world, record=record)


def stream_of(
    config: PlanConfig,
    pyramid: ImagePyramid,
    device: torch.device,
    share: Callable[[int], slice | Indices] = whole_batch,
) -> RealStream:
    """The images of one process."""
    budget = budget_bytes(config.data.device_budget_mib, device)
    return RealStream(pyramid, 0, device, config.data.mirror, config.data.labels, budget=budget, share=share)


def noise(path: Path, architecture: Architecture, images: int) -> ImagePyramid:
    """A pyramid of a few images of noise."""
    source = np.random.default_rng(0)
    side, channels, classes = architecture.resolution, architecture.channels, architecture.labels
    names = [str(number) for number in range(classes)] or None
    with PyramidWriter(path, side, channels, {"kind": "noise"}, class_names=names) as writer:
        for number in range(images):
            image = source.integers(0, 256, (side, side, channels), np.uint8)
            writer.add(image, number % classes if classes else None)
    return ImagePyramid(path)


def wait_for(device: torch.device) -> None:
    """Return when `device` has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
