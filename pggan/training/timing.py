"""The seconds that training takes for an image: measured on this device, or by operations where steps are too dear."""

import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from math import inf
from statistics import median
from typing import Any, NamedTuple

import torch

from pggan.config import PlainGradientsConfig, TrainerConfig
from pggan.core.architecture import Architecture, Precision
from pggan.core.cpu import processor_facts
from pggan.core.devices import synchronize
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.optim.batch_partition import BatchPartition
from pggan.training.build import build_trainer
from pggan.training.precision import DTYPES, precision_on, set_float32
from pggan.training.trainer import Trainer

EMA_DECAY = 0.999
MAX_SECONDS = 5.0  # that the start of a run takes for measuring its phases
MAX_SHARE = 0.01  # of the whole run that measuring its phases may take
STEPS = 3  # timed of each kind, of which the fastest counts: it says most whatever else runs here
WARMUP = {"cpu": 2, "mps": 2, "cuda": 5}  # steps before them; on CUDA, some more until they are captured

# The cost of a step by its operations: G's forward pass counts UPDATE_PASSES times, and PENALTY_PASSES times more where
# penalties are due.  Shares of the rates of a large product and of a large copy, and the seconds in which a level's
# operations start: of CPUs from the demo's steps (lab book, "Plans against runs, again"); of CUDA, the nine stages of
# the paper's networks on one H100 are within 15 % of it (docs/performance.md); of Apple silicon a guess.
UPDATE_PASSES, PENALTY_PASSES = 12, 6
START_SECONDS = {"cpu": 0.01, "mps": 0.002, "cuda": 0.0015}
PRODUCT_SHARE = {"cpu": 0.7, "mps": 0.3, "cuda": 0.75}
ACTIVATION_BYTES = 23  # moved per activation and pass


class Speed(NamedTuple):
    """The speed of a device."""

    start_seconds: float  # of the operations of one level in a step
    flops_per_second: float  # floating-point operations in the products of a step
    bytes_per_second: float  # read and written; infinite where that never limits a step

    def step_seconds(self, architecture: Architecture, resolution: int, batch: int, reg_interval: int) -> float:
        """The time of a step of so many images, mean over an interval of lazy penalties."""
        passes = UPDATE_PASSES + PENALTY_PASSES / reg_interval
        multiplying = 2 * architecture.multiply_adds(resolution) / self.flops_per_second
        moving = ACTIVATION_BYTES * architecture.activations_up_to(resolution) / self.bytes_per_second
        starting = (resolution.bit_length() - 2) * self.start_seconds
        return starting + batch * passes * max(multiplying, moving)


def speed_of(config: TrainerConfig, device: torch.device) -> Speed:
    """The speed of steps of `config` on `device`, from the rates of a product and a copy there, which are measured."""
    dtype = DTYPES.get(precision_on(device, config.precision), torch.float32)
    rate = product_rate(device, config.precision, dtype, 512 if device.type == "cpu" else 4096)
    moving = copy_rate(device) if device.type == "cuda" else inf
    return Speed(START_SECONDS[device.type], rate * PRODUCT_SHARE[device.type], moving)


def product_rate(device: torch.device, precision: Precision, dtype: torch.dtype, side: int) -> float:
    """Floating-point operations per second of a product of matrices of `side` rows."""
    set_float32(device, precision)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / _seconds(lambda: a @ b, device)


def copy_rate(device: torch.device, numbers: int = 2**24) -> float:
    """Bytes per second, read and written, of a copy of so many float32 numbers: more than fit into a GPU's caches."""
    source = torch.ones(numbers, device=device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)


def _seconds(work: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """The median time of `work` in six rounds, of which the first does not count."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize(device)
        times.append((time.perf_counter() - start) / repeats)
    return median(times[1:])


def hardware(device: torch.device) -> dict[str, Any]:
    """The device and the system that figures are measured on."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else processor_facts()["model name"]
    return {"device": str(device), "name": name, "threads": torch.get_num_threads(), "system": platform.platform()}


class PhaseTimes(NamedTuple):
    """The seconds that an image takes in every phase of a schedule."""

    seconds_per_image: tuple[float, ...]  # by the index of the phase
    measured: frozenset[int]  # resolutions whose steps were measured; of the others, steps are expected to cost so much

    def seconds(self, schedule: Schedule, before: int, after: int) -> float:
        """The seconds from one image count to another."""
        shown = schedule.images_between(before, after)
        return sum(each * images for each, images in zip(self.seconds_per_image, shown, strict=True))


@dataclass(frozen=True)
class StepTimes:
    """The times of steps of one trainer on this device; `ratio`: of steps measured before to what was expected."""

    config: TrainerConfig
    architecture: Architecture
    device: torch.device
    speed: Speed
    ratio: float = 1.0

    def expected(self, resolution: int, batch: int) -> float:
        """The seconds of a step by its operations alone."""
        interval = self.config.loss.reg_interval
        return self.speed.step_seconds(self.architecture, resolution, batch, interval)

    def measured(self, phases: list[Phase], seconds: float) -> dict[int, float]:
        """The seconds of a step by resolution, for as many of `phases` as can be measured in so many seconds.

        The lowest one comes first, whose steps are the cheapest, then from the highest one down all that there is time
        for.  A phase has the images of this device in its batch.
        """
        began, found, trainer = time.perf_counter(), dict[int, float](), None
        kinds = min(self.config.loss.reg_interval, 2)
        for phase in [phases[0], *reversed(phases[1:])]:
            step = self.all_seconds({phase.resolution: phase.batch}, found)[phase.resolution]
            if time.perf_counter() - began + kinds * (WARMUP[self.device.type] + STEPS) * step > seconds:
                continue
            if trainer is None:
                alone = replace(self.config, elastic=False, gradients=PlainGradientsConfig(name="fp32"))
                group = ProcessGroup.single_process(self.device)
                trainer = build_trainer(alone, self.architecture, phases, group, log=lambda text: None)
            found[phase.resolution] = step_seconds(trainer, phase, self.device)
        return found

    def all_seconds(self, batches: Mapping[int, int], found: Mapping[int, float]) -> dict[int, float]:
        """The seconds of a step by resolution: those that were `found`, the others scaled from the nearest of them."""

        def of(side: int) -> float:
            if side in found:
                return found[side]
            near = min(found, key=lambda other: abs(other.bit_length() - side.bit_length()), default=None)
            ratio = self.ratio if near is None else found[near] / self.expected(near, batches.get(near, batches[side]))
            return ratio * self.expected(side, batches[side])

        return {side: of(side) for side in batches}


def step_seconds(trainer: Trainer, phase: Phase, device: torch.device) -> float:
    """The time of a step of `phase` on noise, mean over the interval of lazy penalties; the trainer's state changes."""
    interval, state, architecture = trainer.loss.reg_interval, trainer.state, trainer.state.g_ema.architecture
    state.images, state.phase_index = (phase.start + phase.end) // 2, phase.index
    state.reset_optimizers()
    trainer.release_graphs()
    shape, classes = (phase.batch, architecture.channels, phase.resolution, phase.resolution), architecture.num_classes
    labels = torch.eye(classes, device=device)[torch.arange(phase.batch) % classes] if classes else None
    reals = Reals(2 * torch.rand(shape, device=device) - 1, labels, labels)

    def one(position: int, number: int) -> float:
        rng = StepRng(0, (number * interval + position) * phase.batch, device)
        start = time.perf_counter()
        trainer.step(phase, reals, rng, EMA_DECAY)
        synchronize(device)
        return time.perf_counter() - start

    before = WARMUP[device.type]
    kinds = [[one(position, number) for number in range(before + STEPS)] for position in range(min(interval, 2))]
    due, rest = min(kinds[0][before:]), min(kinds[-1][before:])
    return (due + (interval - 1) * rest) / interval


def measure_phase_times(
    config: TrainerConfig,
    architecture: Architecture,
    schedule: Schedule,
    partition: BatchPartition,
    *,
    device: torch.device,
    images: int = 0,
    seconds: float | None = None,
) -> PhaseTimes:
    """The times of all phases, by steps of new networks at those resolutions after `images` that there is time for.

    Args: seconds: that measuring may take; None: at most MAX_SECONDS and MAX_SHARE of the run, on a CPU alone.  A GPU
    takes longer to make networks, to try kernels and to capture steps than to show the first of the run's own.
    """
    last = {phase.resolution: phase for phase in schedule.phases if phase.end > images} or {
        schedule.final_resolution: schedule.phases[-1]
    }
    local = [replace(phase, batch=partition.largest_local_batch(phase.batch)) for phase in last.values()]
    times = StepTimes(config, architecture, device, speed_of(config, device))
    batches = {phase.resolution: partition.largest_local_batch(phase.batch) for phase in schedule.phases}

    def phase_times(found: Mapping[int, float]) -> PhaseTimes:
        each = times.all_seconds(batches, found)
        return PhaseTimes(tuple(each[phase.resolution] / phase.batch for phase in schedule.phases), frozenset(found))

    expected = phase_times({})
    if seconds is None:
        most = min(MAX_SECONDS, MAX_SHARE * expected.seconds(schedule, images, schedule.total))
        seconds = most if device.type == "cpu" else 0.0
    return phase_times(times.measured(local, seconds)) if seconds else expected
