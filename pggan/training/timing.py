"""Estimates the seconds of training steps, from timed steps or from FLOPs and bytes."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import inf
from statistics import median
from typing import NamedTuple

import torch

from pggan.core.architecture import MIN_RESOLUTION, Architecture, Precision, resolutions_between
from pggan.core.devices import DTYPES, precision_on, synchronize
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase, Schedule, value_at
from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Reals
from pggan.training.build import TrainerSettings, build_trainer
from pggan.training.trainer import Trainer

EMA_DECAY = 0.999
MAX_SECONDS = 5.0  # On a CPU, the method `of_phases` measures for at most 5 seconds, unless `seconds` is given.
MAX_SHARE = 0.01  # On a CPU, the method `of_phases` measures for at most 1 % of the expected training time.
STEPS = 3  # A step time is the median of 3 timed steps.
WARMUP = {"cpu": 2, "mps": 2, "cuda": 5}  # number of first steps that are not timed: warmup, CUDA graph capture

# A step without gradient penalty costs as much as 12 forward passes of G; a penalty costs as much as 6 more passes.
UPDATE_PASSES, PENALTY_PASSES = 12, 6
# {device: (launch seconds per step, launch seconds per resolution, FLOP/s of a step / FLOP/s of a large matmul)}.
# The CPU constants were fitted to the step times of the recipe `demo` (docs/lab.md); the MPS constants are a guess.
ROOFLINE = {"cpu": (0.0, 0.01, 0.7), "mps": (0.0, 0.002, 0.3), "cuda": (0.00097, 0.00022, 0.75)}
# The CUDA constants were fitted to bf16 steps of the paper's networks, as CUDA graphs on an H200 (docs/performance.md).
# {least number of feature maps: FLOP/s of a convolution with so many feature maps / FLOP/s of a large matmul}
SHARES = {1: 0.165, 32: 0.26, 64: 0.54, 128: 0.72, 256: 0.87}
# A forward pass reads and writes 8.1 bytes per activation, plus 2.2 bytes per activation at the images' resolution.
ACTIVATION_BYTES, IMAGE_BYTES, WEIGHT_BYTES = 8.1, 2.2, 240  # A step reads and writes 240 bytes per weight of G.
MEMORY_BYTES = {False: 64, True: 19}  # {whether activations have 16 bits: measured bytes of memory per activation}
LARGE_BATCH, ROOM = 32, 1.4  # A CUDA graph needs 1.4 times the memory of an eager step.


class Speed(NamedTuple):
    """The speed of a device: launch times, compute rate and memory bandwidth."""

    step_seconds: float  # seconds to launch the operations that every step needs
    level_seconds: float  # seconds to launch the operations of one resolution
    flops_per_second: float  # FLOP/s of large matrix products
    bytes_per_second: float = inf  # Infinity means that memory bandwidth never limits a step.
    shares: Mapping[int, float] = {1: 1.0}  # {least number of feature maps: share of `flops_per_second` reached}

    @classmethod
    def of(cls, kind: str, precision: Precision, products: float, copies: float = inf) -> "Speed":
        """Estimate a device's speed from `products` (FLOP/s of large matmuls) and `copies` (bytes/s of copies)."""
        step, level, share = ROOFLINE[kind]
        if kind == "cuda" and precision is not Precision.fp32:
            return cls(step, level, products, copies, SHARES)
        return cls(step, level, share * products, copies / 2)  # float32 moves twice as many bytes as 16-bit numbers

    def seconds(self, architecture: Architecture, resolution: int, batch: int, reg_interval: int) -> float:
        """Expected seconds per step, a mean over steps with and without penalties; for `batch` 0, the fixed costs."""
        passes, found, before = batch * (UPDATE_PASSES + PENALTY_PASSES / reg_interval), self.step_seconds, 0
        for level in resolutions_between(MIN_RESOLUTION, resolution):
            width, total = architecture.width(level), architecture.multiply_adds(level)
            multiply_adds, before = total - before, total  # `total` includes all lower resolutions.
            multiplying = 2 * passes * multiply_adds / (self.flops_per_second * value_at(self.shares, width))
            moved = passes * (ACTIVATION_BYTES + IMAGE_BYTES * (level == resolution)) * width * level**2
            moved += WEIGHT_BYTES * multiply_adds / level**2  # A weight takes part in about one multiply-add per pixel.
            found += self.level_seconds + multiplying + moved / self.bytes_per_second
        return found


def speed_of(device: torch.device, precision: Precision) -> Speed:
    """Measure the speed of `device` with a large matrix product and, on CUDA, with a memory copy."""
    precision = precision_on(device, precision)
    dtype = DTYPES.get(precision, torch.float32)
    products = product_rate(device, dtype, 512 if device.type == "cpu" else 4096)
    copies = inf
    if device.type == "cuda":
        source = torch.ones(2**24, device=device)  # 64 MiB do not fit into a GPU's caches.
        target = torch.empty_like(source)
        copies = 2 * source.nbytes / seconds_of(lambda: target.copy_(source), device)
    return Speed.of(device.type, precision, products, copies)


def product_rate(device: torch.device, dtype: torch.dtype, side: int) -> float:
    """Measure the FLOP/s of a product of two matrices [side, side]."""
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / seconds_of(lambda: a @ b, device)


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = 10) -> float:
    """Measure the seconds of one call of `work`: the median of five rounds, after a warm-up round."""
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

    seconds_per_image: tuple[float, ...]
    measured: frozenset[int]  # resolutions whose steps were timed

    def seconds(self, schedule: Schedule, before: int, after: int) -> float:
        """The seconds of training from image count `before` to image count `after`."""
        shown = schedule.images_between(before, after)
        return sum(each * images for each, images in zip(self.seconds_per_image, shown, strict=True))


class StepTimes:
    """Measures and estimates the step times of one architecture on one device."""

    def __init__(
        self, settings: TrainerSettings, architecture: Architecture, device: torch.device, speed: Speed | None = None
    ) -> None:
        self.settings, self.reg_interval = replace(settings, elastic=False), settings.loss.reg_interval
        self.architecture, self.device = architecture, device
        self.speed = speed_of(device, settings.precision) if speed is None else speed

    def expected(self, resolution: int, batch: int) -> float:
        return self.speed.seconds(self.architecture, resolution, batch, self.reg_interval)

    def larger_batches(self, last: Phase, free: int | None) -> str:
        """Advise larger batches in the final phase; "" below 128x128, for large batches, or if memory is scarce."""
        side, batch = last.resolution, last.batch
        each = MEMORY_BYTES["16" in precision_on(self.device, self.settings.precision)]
        needed = each * LARGE_BATCH * self.architecture.activations_up_to(side) + 2**30  # Weights need 1 GiB.
        if side < 128 or batch >= LARGE_BATCH or free is None or ROOM * needed > free:
            return ""
        time = self.expected(side, LARGE_BATCH) / LARGE_BATCH / (self.expected(side, batch) / batch)
        room = f"The GPU has room for larger batches ({LARGE_BATCH} at {side}x{side}), as in schedule=official_8gpus"
        return f"{room}: {needed / 2**30:.0f} GiB, and {1 - time:.0%} less time per image (predicted)."

    def measured(self, phases: Sequence[Phase], seconds: float) -> dict[int, float]:
        """Measure steps of one rank in `phases` for up to `seconds`; returns {resolution: measured / expected time}."""
        began, ratios, trainer = time.perf_counter(), dict[int, float](), None
        alone = ProcessGroup.single_process(self.device)
        kinds = min(self.reg_interval, 2)
        for phase in [phases[0], *reversed(phases[1:])]:  # The cheap first phase predicts the time of other phases.
            expected = self.expected(phase.resolution, phase.batch)
            needed = kinds * (WARMUP[self.device.type] + STEPS) * expected * nearest(ratios, phase.resolution)
            if time.perf_counter() - began + needed <= seconds:
                trainer = trainer or build_trainer(self.settings, self.architecture, phases, alone)
                ratios[phase.resolution] = step_seconds(trainer, phase, self.device) / expected
        return ratios

    def of_phases(
        self, schedule: Schedule, local_batch: Callable[[int], int] = int, images: int = 0, seconds: float | None = None
    ) -> PhaseTimes:
        """Estimate the seconds per image in each phase.  Phases that are over after `images` images are not timed.

        The function `local_batch` maps a batch size to the batch size of one rank.  `seconds` limits all measurements.
        """
        phases = [replace(phase, batch=local_batch(phase.batch)) for phase in schedule.phases]
        steps = [self.expected(phase.resolution, phase.batch) for phase in phases]
        expected = tuple(step / phase.batch for step, phase in zip(steps, schedule.phases, strict=True))
        if seconds is None:  # On a GPU, steps are not measured, because the first steps are slow.
            whole = PhaseTimes(expected, frozenset()).seconds(schedule, images, schedule.total)
            seconds = min(MAX_SECONDS, MAX_SHARE * whole) if self.device.type == "cpu" else 0.0
        left = {phase.resolution: phase for phase in phases if phase.end > images}
        ratios = self.measured([*left.values()], seconds) if left else {}
        each = (nearest(ratios, phase.resolution) * seconds for phase, seconds in zip(phases, expected, strict=True))
        return PhaseTimes(tuple(each), frozenset(ratios))


def nearest(ratios: Mapping[int, float], resolution: int) -> float:
    """Return measured / expected time at the resolution in `ratios` nearest to `resolution`; 1 if `ratios` is empty."""
    known = min(ratios, key=lambda one: abs(one.bit_length() - resolution.bit_length()), default=None)
    return 1.0 if known is None else ratios[known]


def step_seconds(trainer: Trainer, phase: Phase, device: torch.device) -> float:
    """Time a few steps of `phase` on noise; returns seconds per step, a mean over steps with and without penalties."""
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
