"""Updates as a run makes them, on images of noise, timed."""

import time
from collections.abc import Callable, Sequence
from math import ceil
from pathlib import Path
from statistics import mean

import numpy as np

from pggan.config import PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.devices import synchronize
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.format.writer import PyramidWriter
from pggan.data.stream.loader import budget_bytes
from pggan.data.stream.reals import RealStream
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.run.metrics import MetricAccumulator
from pggan.training.build import build_trainer
from pggan.training.cuda_graphs import WARMUP_STEPS

DECAY = 0.999


class TimedUpdates:
    """Updates of one trainer, made by the ranks of `group` together."""

    def __init__(
        self,
        config: PlanConfig,
        architecture: Architecture,
        phases: Sequence[Phase],
        group: ProcessGroup,
        *,
        pyramid: ImagePyramid,
        log: Callable[[str], None],
    ) -> None:
        """Args: pyramid: images to train on; log: is told what does not work here."""
        self.group = group
        self.trainer, _ = build_trainer(config, architecture, phases, group, check_memory=False, log=log)
        # The last step of the warm-up tells the pace.
        self.warmup = 2 if self.trainer.graphs is None else WARMUP_STEPS + 2
        self.accumulator = MetricAccumulator()
        batches = (phase.batch for phase in phases)
        partition = BatchPartition.of(config, batches, group.world_size, group.rank)
        self.stream = RealStream(
            pyramid,
            0,
            group.device,
            config.data.mirror,
            config.data.labels,
            budget=budget_bytes(config.data.device_budget_mib, group.device),
            indices=partition.indices,
        )

    def seconds(self, phase: Phase, least_steps: int, least_seconds: float) -> float:
        """Of an update of `phase`, mean over the interval of lazy penalties.

        Of each kind of steps it takes at least `least_steps`, and `least_seconds`.  Called by all ranks.
        """
        interval, state = self.trainer.loss.reg_interval, self.trainer.state
        state.images = (phase.start + phase.end) // 2  # the same on all ranks, whatever each did before
        state.phase_index = phase.index
        state.reset_optimizers()
        self.trainer.release_graphs()
        found = [self._mean(phase, position, least_steps, least_seconds) for position in range(min(interval, 2))]
        self.accumulator.reduce(self.group)
        return (found[0] + (interval - 1) * found[-1]) / interval

    def _mean(self, phase: Phase, position: int, least_steps: int, least_seconds: float) -> float:
        """Seconds of the updates at `position` in the interval of lazy penalties, 0 being the one with them."""
        pace = [self._one(phase, position, number) for number in range(self.warmup)][-1]
        count = self.group.broadcast_object(max(least_steps, ceil(least_seconds / pace)))
        return mean(self._one(phase, position, self.warmup + number) for number in range(count))

    def _one(self, phase: Phase, position: int, number: int) -> float:
        update = number * self.trainer.loss.reg_interval + position
        rng = StepRng(0, update * phase.batch, self.group.device)
        start = time.perf_counter()
        self.group.all_reduce_flags(0)
        self.accumulator.add(self.trainer.step(phase, self.stream.batch(phase, rng), rng, DECAY))
        synchronize(self.group.device)
        return time.perf_counter() - start


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
