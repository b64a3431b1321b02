"""How long the steps of a run take on the devices here: real ones, on images of noise, as training makes them."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from pggan.config import PlainGradientsConfig, PlanConfig
from pggan.core.architecture import Architecture
from pggan.core.devices import free_memory
from pggan.core.errors import UserError
from pggan.core.formatting import Log
from pggan.core.schedule import Phase
from pggan.data.loader import budget_bytes
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import RealBatches
from pggan.data.writer import write_pyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.performance.plan.phases import USABLE, PhaseCost, halfway
from pggan.run.metric_accumulator import MetricAccumulator
from pggan.training.build import build_trainer
from pggan.training.timing import StepTimer

MEASURED, EXTRAPOLATED, ASSUMED, PREDICTED = "measured", "extrapolated", "assumed", "predicted"
ROUNDS = 3  # of all phases in turn, so that what else the machine does for a while does not fall on one of them
MIN_SECONDS = 1.5  # for which steps of one kind are timed in all rounds, however many that takes


class Timing(NamedTuple):
    """The time of a step of one phase."""

    seconds: float  # mean over the interval of lazy penalties
    single_device_seconds: float  # of one that a single device would make, with nothing to reduce
    fixed_seconds: float  # the part of `single_device_seconds` that does not depend on the batch
    source: str  # MEASURED, EXTRAPOLATED from the last one that was, ASSUMED from a rate, or PREDICTED for a card


def timer_of(config: PlanConfig, architecture: Architecture, group: ProcessGroup, data: Path) -> StepTimer:
    """Times steps of a run on the images of the pyramid `data`, made by the ranks of `group` together."""
    phases, log = config.schedule.build().phases, partial(print, file=sys.stderr)
    trainer = build_trainer(config, architecture, phases, group, log=log)
    budget = budget_bytes(config.data.device_budget_mib, group.device, group.local_world_size)
    indices = BatchPartition.of(config, (), group.world_size, group.rank).indices
    mirror, labels = config.data.mirror, config.data.labels
    stream = RealBatches(ImagePyramid(data), 0, group.device, mirror, labels, budget=budget, indices=indices)
    return StepTimer(trainer, group, stream.batch, MetricAccumulator().add)


@dataclass(frozen=True, eq=False)
class RepeatedTimer:
    """Updates of one phase, timed in every round."""

    steps: StepTimer
    phase: Phase
    rounds: list[float] = field(default_factory=list)  # seconds of a step

    @property
    def seconds(self) -> float:
        """The time of a step."""
        return median(self.rounds)

    @property
    def round_seconds(self) -> float:
        """The time that another round takes, about: steps with penalties and without, each warmed up."""
        return 2 * self.seconds * (self.steps.warmup + 1)


class PhaseTimers(NamedTuple):
    """The timers of one phase."""

    run: RepeatedTimer  # the steps of the run
    single_device: RepeatedTimer  # the largest local batch, nothing to reduce; in a run of one rank the same as `run`
    small: RepeatedTimer | None  # one group of minibatch stddev; None if the batch is one, or another phase measures it

    def all(self) -> list[RepeatedTimer]:
        """All timers that there are, each once."""
        return [*dict.fromkeys(timer for timer in self if timer is not None)]

    def fixed_seconds(self) -> float:
        """The part of a step on one device that does not depend on the batch: a line through two batch sizes."""
        if self.small is None:
            return 0.0  # the batch can't be divided any further
        group = self.small.phase.batch
        local = self.single_device
        per_image = (local.seconds - self.small.seconds) / (local.phase.batch - group)
        return max(self.small.seconds - per_image * group, 0.0)

    def timing(self, fixed_seconds: float) -> Timing:
        """The median of all rounds; a whole batch on one device is scaled up from the part of a rank."""
        local = self.single_device
        fixed = min(fixed_seconds, local.seconds)
        whole = fixed + (local.seconds - fixed) * self.run.phase.batch / local.phase.batch
        return Timing(self.run.seconds, whole, fixed, MEASURED)


class Calibration:
    """Trainers on all ranks of a run, which train on noise to see how long that takes."""

    def __init__(
        self, config: PlanConfig, architecture: Architecture, costs: list[PhaseCost], group: ProcessGroup, data: Path
    ) -> None:
        """Args: data: pyramid of the images to train on."""
        self.config, self.costs, self.group = config, costs, group
        self.partition = BatchPartition.of(config, (), group.world_size, group.rank)
        self.single_device, alone = timer_of(config, architecture, group, data), config
        self.run = self.single_device
        if group.world_size > 1 or config.elastic:
            alone = replace(config, elastic=False, gradients=PlainGradientsConfig(name="fp32"))
            self.single_device = timer_of(alone, architecture, ProcessGroup.single_process(group.device), data)

    def timings(self, log: Log) -> list[Timing]:
        """One per phase; from the first phase that does not fit or would take too long on, they are extrapolated.

        `log` is told what is being measured.  Raises UserError if not even the first phase fits.
        """
        deadline = time.monotonic() + self.config.limit_seconds
        found: list[PhaseTimers] = []
        for cost in self.costs:
            if not self._can_measure(cost, found, deadline):
                break
            found.append(self._timers(halfway(cost.phase), found))
            self._measure(found[-1], 1, log)
        for number in range(2, ROUNDS + 1):
            for timers in found:
                need = sum(timer.round_seconds for timer in timers.all())
                if self.group.broadcast_object(time.monotonic() + need < deadline):
                    self._measure(timers, number, log)
        fixed = {timers.run.phase.resolution: timers.fixed_seconds() for timers in reversed(found)}
        timings = [timers.timing(fixed[timers.run.phase.resolution]) for timers in found]
        last, flops = timings[-1], self.costs[len(found) - 1].flops
        for cost in self.costs[len(found) :]:
            scale = cost.flops / flops
            whole = last.single_device_seconds * scale
            timings.append(Timing(last.seconds * scale, whole, min(last.fixed_seconds, whole), EXTRAPOLATED))
        return timings

    def _can_measure(self, cost: PhaseCost, found: Sequence[PhaseTimers], deadline: float) -> bool:
        free = self.group.all_reduce_min(free_memory(self.group.device, self.group.local_world_size))
        fits = free is None or cost.peak_bytes <= USABLE * free
        if found:
            need = found[-1].run.round_seconds * cost.flops / self.costs[len(found) - 1].flops
            return bool(self.group.broadcast_object(fits and time.monotonic() + need < deadline))
        with self.group.collective_errors():
            if not fits:
                problem = f"A step at {cost.phase.name} with {cost.phase.batch} images does not fit into free memory."
                raise UserError(problem, "Leave out calibrate=true, or lower schedule.batch.")
        return True

    def _batches(self, phase: Phase) -> tuple[int, int]:
        """Images that a single device is timed with: the largest local batch, and a group of minibatch stddev."""
        local = self.partition.largest_local_batch(phase.batch)
        return local, min(self.config.model.stddev_group, local)

    def _timers(self, phase: Phase, found: Sequence[PhaseTimers]) -> PhaseTimers:
        run = RepeatedTimer(self.run, phase)
        local, group = self._batches(phase)
        whole = (
            run if self.run is self.single_device else RepeatedTimer(self.single_device, replace(phase, batch=local))
        )
        first = phase.resolution not in [timers.run.phase.resolution for timers in found]
        small = RepeatedTimer(self.single_device, replace(phase, batch=group)) if group < local and first else None
        return PhaseTimers(run, whole, small)

    def _measure(self, timers: PhaseTimers, round_number: int, log: Log) -> None:
        phase = timers.run.phase
        log(f"Measuring steps at {phase.name}, batch {phase.batch} (round {round_number} of {ROUNDS})")
        for timer in timers.all():
            steps = -(-self.config.steps // ROUNDS)
            timer.rounds.append(timer.steps.seconds(timer.phase, steps, MIN_SECONDS / ROUNDS))


def write_noise(path: Path, architecture: Architecture, images: int) -> None:
    """Write a pyramid of `images` images of noise, of all classes in turn."""
    side, num_classes = architecture.resolution, architecture.num_classes
    pixels = np.random.default_rng(0).integers(0, 256, (images, side, side, architecture.channels), np.uint8)
    names = [str(number) for number in range(num_classes)] or None
    labels = [number % num_classes for number in range(images)] if num_classes else ()
    write_pyramid(path, list(pixels), {"kind": "noise"}, class_names=names, labels=labels)
