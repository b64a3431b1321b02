"""Estimates the training seconds per image in each phase, from measured steps or from FLOPs and bytes of a step.

The remaining time of a run, `hours=` and `pggan plan` use these estimates.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import NamedTuple

import torch

from pggan.core.architecture import Architecture, Precision
from pggan.core.devices import DTYPES, precision_on, synchronize
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.training.build import TrainerSettings, build_trainer
from pggan.training.trainer import Trainer

EMA_DECAY = 0.999
MAX_SECONDS = 5.0  # a run measures step times at its start for at most this many seconds
MAX_SHARE = 0.01  # the measurement of step times may take at most this share of the run's expected time
STEPS = 3  # number of timed steps, of which the median is used
WARMUP = {"cpu": 2, "mps": 2, "cuda": 5}  # number of untimed first steps, in which CUDA graphs are captured

# A step costs as much as UPDATE_PASSES forward passes of G, plus PENALTY_PASSES if it has a gradient penalty.
UPDATE_PASSES, PENALTY_PASSES = 12, 6
# {device type: (seconds to launch one level's operations, FLOP/s of a step / FLOP/s of a large matrix product)}
# The CPU constants were fitted to the step times of the recipe `demo` (docs/lab.md); the MPS constants are a guess.
# The CUDA constants predict step times of the paper's networks on one H100 within 15 % (docs/performance.md).
ROOFLINE = {"cpu": (0.01, 0.7), "mps": (0.002, 0.3), "cuda": (0.0015, 0.75)}
ACTIVATION_BYTES = 23  # bytes of memory traffic per activation in each pass through a network


class Speed(NamedTuple):
    """How fast a device runs training steps: launch time, compute rate and memory bandwidth."""

    start_seconds: float  # seconds to launch the operations of one level in a step
    flops_per_second: float  # FLOP/s of the matrix products and convolutions of a step
    bytes_per_second: float  # memory bandwidth; infinite if bandwidth never limits a step

    @classmethod
    def of(cls, kind: str, products: float, copies: float = inf) -> "Speed":
        """Estimate the `Speed` of a device type `kind` from FLOP/s of large matrix products and bytes/s of copies."""
        start_seconds, share = ROOFLINE[kind]
        return cls(start_seconds, share * products, copies)

    def step_seconds(self, architecture: Architecture, resolution: int, batch: int, reg_interval: int) -> float:
        """The expected seconds of a step with `batch` images, averaged over the interval of lazy penalties."""
        passes = UPDATE_PASSES + PENALTY_PASSES / reg_interval
        multiplying = 2 * architecture.multiply_adds(resolution) / self.flops_per_second
        moving = ACTIVATION_BYTES * architecture.activations_up_to(resolution) / self.bytes_per_second
        starting = (resolution.bit_length() - 2) * self.start_seconds
        return starting + batch * passes * max(multiplying, moving)


def speed_of(device: torch.device, precision: Precision) -> Speed:
    """The speed of training steps on `device`, from a measured matrix product and, on CUDA, a copy of 64 MiB."""
    dtype = DTYPES.get(precision_on(device, precision), torch.float32)
    products = product_rate(device, dtype, 512 if device.type == "cpu" else 4096)
    copies = inf
    if device.type == "cuda":
        source = torch.ones(2**24, device=device)  # 64 MiB are more than a GPU's caches hold
        target = torch.empty_like(source)
        copies = 2 * source.nbytes / _seconds(lambda: target.copy_(source), device)
    return Speed.of(device.type, products, copies)


def product_rate(device: torch.device, dtype: torch.dtype, side: int) -> float:
    """The measured FLOP/s of a product of two matrices with `side` rows and columns."""
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / _seconds(lambda: a @ b, device)


def _seconds(work: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """The median seconds of one call of `work`, over five rounds after a warm-up round."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        synchronize(device)
        times.append((time.perf_counter() - start) / repeats)
    return median(times[1:])


class PhaseTimes(NamedTuple):
    """The training seconds per image in each phase of a schedule."""

    seconds_per_image: tuple[float, ...]  # one value per phase, in the order of phases
    measured: frozenset[int]  # resolutions with measured steps; FLOPs and bytes give estimates for other resolutions

    def seconds(self, schedule: Schedule, before: int, after: int) -> float:
        """The seconds of training from image count `before` to image count `after`."""
        shown = schedule.images_between(before, after)
        return sum(each * images for each, images in zip(self.seconds_per_image, shown, strict=True))


class StepTimes:
    """Measures and estimates the step times of one architecture on one device."""

    def __init__(
        self, settings: TrainerSettings, architecture: Architecture, device: torch.device, speed: Speed | None = None
    ) -> None:
        """Args: speed: the speed of the device; None: measure the speed now."""
        self.settings, self.reg_interval = replace(settings, elastic=False), settings.loss.reg_interval
        self.architecture, self.device = architecture, device
        self.speed = speed_of(device, settings.precision) if speed is None else speed

    def expected(self, resolution: int, batch: int) -> float:
        """The expected seconds of a step, from its FLOPs and bytes alone."""
        return self.speed.step_seconds(self.architecture, resolution, batch, self.reg_interval)

    def measured(self, phases: Sequence[Phase], seconds: float) -> dict[int, float]:
        """{resolution: measured / expected step time} for as many of `phases` as can be measured within `seconds`.

        The lowest resolution comes first, because its steps are cheapest; then the others, from the highest down.
        The batch of each phase must be the local batch of this device.
        """
        began, ratios, trainer = time.perf_counter(), dict[int, float](), None
        alone = ProcessGroup.single_process(self.device)
        kinds = min(self.reg_interval, 2)
        for phase in [phases[0], *reversed(phases[1:])]:
            expected = self.expected(phase.resolution, phase.batch)
            needed = kinds * (WARMUP[self.device.type] + STEPS) * expected * nearest(ratios, phase.resolution)
            if time.perf_counter() - began + needed <= seconds:
                trainer = trainer or build_trainer(self.settings, self.architecture, phases, alone)
                ratios[phase.resolution] = step_seconds(trainer, phase, self.device) / expected
        return ratios

    def of_phases(
        self, schedule: Schedule, local_batch: Callable[[int], int] = int, images: int = 0, seconds: float | None = None
    ) -> PhaseTimes:
        """The seconds per image in each phase.  If time allows, measures steps of phases after image count `images`.

        Args: local_batch: computes one rank's batch from the whole batch; seconds: time limit of measurements, by
        default min(MAX_SECONDS, MAX_SHARE of the run) on CPUs, and 0 on other devices, whose first steps are slow.
        """
        phases = [replace(phase, batch=local_batch(phase.batch)) for phase in schedule.phases]
        steps = [self.expected(phase.resolution, phase.batch) for phase in phases]
        expected = tuple(step / phase.batch for step, phase in zip(steps, schedule.phases, strict=True))
        if seconds is None:
            whole = PhaseTimes(expected, frozenset()).seconds(schedule, images, schedule.total)
            seconds = min(MAX_SECONDS, MAX_SHARE * whole) if self.device.type == "cpu" else 0.0
        left = {phase.resolution: phase for phase in phases if phase.end > images}
        ratios = self.measured([*left.values()], seconds) if left else {}
        each = (nearest(ratios, phase.resolution) * seconds for phase, seconds in zip(phases, expected, strict=True))
        return PhaseTimes(tuple(each), frozenset(ratios))


def nearest(ratios: Mapping[int, float], resolution: int) -> float:
    """The ratio of the resolution in `ratios` that is nearest to `resolution`; 1 if `ratios` is empty."""
    known = min(ratios, key=lambda one: abs(one.bit_length() - resolution.bit_length()), default=None)
    return 1.0 if known is None else ratios[known]


def step_seconds(trainer: Trainer, phase: Phase, device: torch.device) -> float:
    """The mean seconds of a step of `phase` over an interval of lazy penalties; reals are noise, and weights change."""
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
    due, rest = median(kinds[0][before:]), median(kinds[-1][before:])
    return (due + (interval - 1) * rest) / interval
