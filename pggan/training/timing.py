"""How long steps take: measured on the device here, and expected of those that are too dear to measure."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import mean
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.config import PlainGradientsConfig, TrainerConfig
from pggan.core.architecture import Architecture
from pggan.core.batch import Reals
from pggan.core.devices import synchronize
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.batch_partition import BatchPartition
from pggan.training.build import build_trainer
from pggan.training.compute_options import compute_options
from pggan.training.device_rates import copy_rate, matmul_rate
from pggan.training.inputs import mean_over_interval
from pggan.training.trainer import WARMUP_STEPS, Trainer

EMA_DECAY = 0.999
MAX_SECONDS = 5.0  # that the start of a run takes for measuring its phases
MAX_SHARE = 0.01  # of the whole run that measuring its phases may take
STEPS = 3  # timed of each kind, of which the fastest counts: it says most about the others, whatever else runs here

# What a step costs by its operations, where it is too dear to measure: G's forward pass counts UPDATE_PASSES times, and
# PENALTY_PASSES times more where penalties are due; a level's operations take START_SECONDS to start; the rest goes at
# RATE_SHARE of a matrix product's rate, or moves ACTIVATION_BYTES per activation and pass at a copy's rate if that is
# slower.  Of CPUs from the demo's steps (lab book, "Plans against runs, again"), of CUDA from steps on an H100 (lab
# book, "The first GPU: an H100"), of Apple silicon a guess.
UPDATE_PASSES, PENALTY_PASSES = 12, 6
START_SECONDS = {"cpu": 0.01, "mps": 0.002, "cuda": 0.0005}
RATE_SHARE = {"cpu": 0.7, "mps": 0.3, "cuda": 0.75}
ACTIVATION_BYTES = {"cuda": 41}
# Of a phase, beside its steps' own time: kernels are compiled and tried, and steps captured.  On an H100, 13 phases up
# to 256x256 took 40 s (lab book).
PHASE_START_SECONDS = {"cuda": 3.0}
COPIED = 2**24  # numbers: more than fit into the caches of a GPU


class StepTimer:
    """Takes the time of a trainer's steps; its state changes, and does not matter.

    Args: draw: makes the images of a step; keep: called with the metrics of the step, as a run would keep them.
    """

    def __init__(
        self,
        trainer: Trainer,
        group: ProcessGroup,
        draw: Callable[[Phase, StepRng], Reals],
        keep: Callable[[dict[str, Tensor]], None] = lambda metrics: None,
    ) -> None:
        self.trainer, self.group, self.draw, self.keep = trainer, group, draw, keep
        self.warmup = 2 if trainer.graphs is None else WARMUP_STEPS + 2  # the last one predicts the others

    def seconds(
        self,
        phase: Phase,
        least_steps: int,
        least_seconds: float,
        average: Callable[[Sequence[float]], float] = mean,
    ) -> float:
        """The time of a step of `phase`, mean over the interval of lazy penalties.  Called by all ranks.

        Updates with and without penalties are timed for at least `least_steps` and `least_seconds` each.
        """
        interval, state = self.trainer.loss.reg_interval, self.trainer.state
        state.images = (phase.start + phase.end) // 2  # the same on all ranks, whatever each did before
        state.phase_index = phase.index
        state.reset_optimizers()
        self.trainer.release_graphs()
        found = []
        for position in range(min(interval, 2)):  # in the interval; the step at 0 has penalties
            last = [self._one(phase, position, number) for number in range(self.warmup)][-1]
            count = self.group.broadcast_object(max(least_steps, ceil(least_seconds / last)))
            found.append(average([self._one(phase, position, self.warmup + number) for number in range(count)]))
        return mean_over_interval(found[0], found[-1], interval)

    def need(self, step: float, steps: int) -> float:
        """The seconds that `steps` of each kind take with their warm-up, where a `step` takes so long."""
        return step * (self.warmup + steps) * min(self.trainer.loss.reg_interval, 2)

    def _one(self, phase: Phase, position: int, number: int) -> float:
        step = number * self.trainer.loss.reg_interval + position
        rng = StepRng(0, step * phase.batch, self.group.device)
        start = time.perf_counter()
        self.group.all_reduce_flags(0)
        self.keep(self.trainer.step(phase, self.draw(phase, rng), rng, EMA_DECAY))
        synchronize(self.group.device)
        return time.perf_counter() - start


def noise(architecture: Architecture, device: torch.device) -> Callable[[Phase, StepRng], Reals]:
    """Draws reals of noise, [N, C, R, R] in [-1, 1], all of the first class if there are classes."""

    def draw(phase: Phase, rng: StepRng) -> Reals:
        side, labels = phase.resolution, None
        images = 2 * rng.uniform("noise", phase.batch, architecture.channels, side, side) - 1
        if architecture.num_classes:
            labels = torch.zeros(phase.batch, architecture.num_classes, device=device)
            labels[:, 0] = 1
        return Reals(images, labels, labels)

    return draw


class PhaseTimes(NamedTuple):
    """The time that an image is expected to take in every phase of a schedule."""

    seconds_per_image: tuple[float, ...]  # by the index of the phase
    measured: frozenset[int]  # resolutions with steps on this device; else expected from the rate of a matrix product
    phase_start_seconds: float = 0.0  # that the first steps of a phase take besides

    def seconds(self, schedule: Schedule, before: int, after: int) -> float:
        """The seconds from one image count to another."""
        shown = schedule.images_between(before, after)
        begun = sum(phase.start >= before for phase, images in zip(schedule.phases, shown, strict=True) if images)
        training = sum(each * images for each, images in zip(self.seconds_per_image, shown, strict=True))
        return training + begun * self.phase_start_seconds


@dataclass(frozen=True)
class CostModel:
    """The cost of steps of any resolution on a device."""

    architecture: Architecture
    start_seconds: float  # of the operations of one level
    seconds_per_multiply_add: float  # of G's forward pass, with all passes that a step makes
    seconds_per_activation: float = 0.0  # likewise, where moving activations can take longer
    phase_start_seconds: float = 0.0  # that the first steps of a phase take besides

    @classmethod
    def of(cls, config: TrainerConfig, architecture: Architecture, device: torch.device) -> "CostModel":
        """The model of `config` on `device`, from the rates of a product and a copy there, which are measured."""
        options = compute_options(config.precision, config.compute, device)
        side = 512 if device.type == "cpu" else 4096
        rate = matmul_rate(device, config.precision, options.dtype or torch.float32, side)
        passes = UPDATE_PASSES + PENALTY_PASSES / config.loss.reg_interval
        moving = 0.0
        if moved := ACTIVATION_BYTES.get(device.type):
            moving = passes * moved / copy_rate(device, COPIED)
        starting = PHASE_START_SECONDS.get(device.type, 0.0)
        multiplying = 2 * passes / (rate * RATE_SHARE[device.type])
        return cls(architecture, START_SECONDS[device.type], multiplying, moving, starting)

    def seconds(self, resolution: int, batch: int) -> float:
        """The time of a step."""
        levels, architecture = resolution.bit_length() - 2, self.architecture
        multiplying = architecture.multiply_adds(resolution) * self.seconds_per_multiply_add
        moving = architecture.activations_up_to(resolution) * self.seconds_per_activation
        return levels * self.start_seconds + batch * max(multiplying, moving)

    def phase_times(self, schedule: Schedule, known: Mapping[int, float]) -> PhaseTimes:
        """The times of all phases, from the seconds of a step at `known` resolutions, and of the highest of them."""
        batches = {phase.resolution: phase.batch for phase in schedule.phases}
        costs = {side: self.seconds(side, batch) for side, batch in batches.items()}
        scale = known[max(known)] / costs[max(known)] if known else 1.0
        each = {side: known.get(side, scale * cost) / batches[side] for side, cost in costs.items()}
        per_image = tuple(each[phase.resolution] for phase in schedule.phases)
        return PhaseTimes(per_image, frozenset(known), self.phase_start_seconds)


def measure_phase_times(
    config: TrainerConfig,
    architecture: Architecture,
    schedule: Schedule,
    partition: BatchPartition,
    *,
    device: torch.device,
    images: int,
) -> PhaseTimes:
    """The times of the phases after `images`: of those that are cheap enough, steps of the local batch are measured.

    Measured are, from the lowest resolution up, networks of its own, on a CPU only: elsewhere memory, captures and
    compilation would take longer than it takes to see the first of the run's own steps.
    """
    model, known = CostModel.of(config, architecture, device), dict[int, float]()
    if device.type != "cpu":
        return model.phase_times(schedule, known)
    began = time.perf_counter()
    last = {phase.resolution: phase for phase in schedule.phases if phase.end > images}
    phases = [replace(phase, batch=partition.largest_local_batch(phase.batch)) for phase in last.values()]
    timer = single_device_timer(config, architecture, phases, device)
    for local in phases:
        phase_times = model.phase_times(schedule, known)
        step = phase_times.seconds_per_image[local.index] * schedule.phases[local.index].batch
        whole = phase_times.seconds(schedule, images, schedule.total)
        if time.perf_counter() - began + timer.need(step, STEPS) > min(MAX_SECONDS, MAX_SHARE * whole):
            break
        known[local.resolution] = timer.seconds(local, STEPS, 0.0, min)
    return model.phase_times(schedule, known)


def single_device_timer(
    config: TrainerConfig,
    architecture: Architecture,
    phases: Sequence[Phase],
    device: torch.device,
) -> StepTimer:
    """Times steps of new networks on noise, on one device, with nothing to reduce."""
    alone = replace(config, elastic=False, gradients=PlainGradientsConfig(name="fp32"))
    group = ProcessGroup.single_process(device)
    trainer = build_trainer(alone, architecture, phases, group, log=lambda text: None)
    return StepTimer(trainer, group, noise(architecture, device))
