"""How long the updates of a run take on the device here: real ones, of real images' size, as training makes them."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

import numpy as np
import torch

from pggan.architecture import Architecture
from pggan.averages import Averages
from pggan.compute import Compute
from pggan.config import PlanConfig
from pggan.data.loader import budget_bytes
from pggan.data.pyramid import ImagePyramid
from pggan.data.writer import PyramidWriter
from pggan.device import records
from pggan.distributed.world import World
from pggan.draws import Draws
from pggan.errors import UserError
from pggan.fitting import USABLE, free_bytes
from pggan.losses.base import Loss
from pggan.plan.counting import halfway
from pggan.plan.phases import PhaseCost
from pggan.reals import RealStream
from pggan.schedule import Phase
from pggan.state import new_state
from pggan.stepper import STEPS_BEFORE_RECORDING, Stepper

IMAGES = 16  # of noise, to load from
DECAY = 0.999
MEASURED, EXTRAPOLATED, ASSUMED = "measured", "extrapolated", "assumed"
LEAST_SECONDS = 1.0  # that steps of one kind are timed, however many that takes


@dataclass(frozen=True)
class Timing:
    """Of the updates of one phase on one device."""

    seconds: float  # of an update, mean over the interval of lazy penalties
    fixed_seconds: float  # of it, however small the batch
    source: str  # MEASURED, EXTRAPOLATED from the last one that was, or ASSUMED from a rate


class Calibration:
    """A state that is trained on noise in order to see how long that takes."""

    def __init__(
        self,
        config: PlanConfig,
        architecture: Architecture,
        loss: Loss,
        compute: Compute,
        *,
        device: torch.device,
        folder: Path,
        notice: Callable[[str], None],
    ) -> None:
        """Args: folder: may be filled with files; notice: hears what does not work here and what is done instead."""
        self.config, self.loss, self.device = config, loss, device
        self.state = new_state(architecture, config.optimizer, 0, device, half=compute.dtype is torch.float16)
        record = records(config.compute, device)
        self.warmup = STEPS_BEFORE_RECORDING + 1 if record else 1
        self.stepper = Stepper(self.state, loss, compute, record=record, notice=notice)
        self.averages = Averages()
        budget = budget_bytes(config.data.device_budget_mib, device)
        pyramid = noise(folder / "noise", architecture)
        labels = architecture.labels > 0
        self.stream = RealStream(pyramid, 0, device, config.data.mirror, labels, budget=budget)
        self._fixed: dict[int, float] = {}  # by resolution

    def timings(self, costs: Sequence[PhaseCost], tell: Callable[[str], None]) -> list[Timing]:
        """One per phase; from the first that does not fit or would take too long on, they follow from the last rate.

        Raises UserError if not even the first one fits.
        """
        deadline = time.monotonic() + self.config.limit_seconds
        free = free_bytes(self.device)
        found: list[Timing] = []
        rate = fixed = 0.0  # of the last phase measured
        for cost in costs:
            phase = halfway(cost.phase)
            need = 2 * (self.warmup + self.config.steps) * cost.flops / rate if rate else 0.0
            fits = free is None or cost.peak_bytes <= USABLE * free
            if not fits and not rate:
                raise UserError(
                    f"A step at {phase.name} with {phase.batch} images does not fit into the memory that is free.",
                    "Leave out calibrate=true, or lower schedule.batch.",
                )
            if not fits or time.monotonic() + need > deadline or (found and found[-1].source != MEASURED):
                seconds = cost.flops / rate
                found.append(Timing(seconds, min(fixed, seconds), EXTRAPOLATED))
                continue
            tell(f"Measuring steps at {phase.name}, batch {phase.batch}")
            seconds = self.update_seconds(phase)
            fixed = self._fixed[phase.resolution] = self.fixed_seconds(phase, seconds)
            rate = cost.flops / seconds
            found.append(Timing(seconds, fixed, MEASURED))
        return found

    def update_seconds(self, phase: Phase) -> float:
        """Of one update, mean over the interval of lazy penalties."""
        interval = self.loss.interval
        self.state.reset_optimizers()
        self.stepper.forget()
        seconds = [self._median(phase, position) for position in range(min(interval, 2))]
        return (seconds[0] + (interval - 1) * seconds[-1]) / interval

    def fixed_seconds(self, phase: Phase, seconds: float) -> float:
        """The part of an update's `seconds` that a smaller batch would not save: the line through two batches at 0."""
        group = min(self.config.model.stddev_group, phase.batch)
        if phase.resolution in self._fixed:
            return min(self._fixed[phase.resolution], seconds)
        if group == phase.batch:
            return 0.0  # it can't be divided any further
        small = self.update_seconds(replace(phase, batch=group))
        per_image = (seconds - small) / (phase.batch - group)
        return min(max(small - per_image * group, 0.0), seconds)

    def _median(self, phase: Phase, position: int) -> float:
        """Seconds of the updates at `position` in the interval of lazy penalties, 0 being the one with them."""
        times: list[float] = []
        number = 0
        while number < self.warmup + self.config.steps or sum(times[self.warmup :]) < LEAST_SECONDS:
            draws = Draws(0, (number * self.loss.interval + position) * phase.batch, self.device)
            start = time.perf_counter()
            watched = self.stepper.step(phase, self.stream.batch(phase, draws), draws, DECAY)
            self.averages.add(watched)
            self._wait()
            times.append(time.perf_counter() - start)
            number += 1
        self.averages.flush(World.alone(self.device))
        return median(times[self.warmup :])

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        elif self.device.type == "mps":
            torch.mps.synchronize()


def noise(path: Path, architecture: Architecture) -> ImagePyramid:
    """A pyramid of a few images of noise."""
    source = np.random.default_rng(0)
    side, channels, classes = architecture.resolution, architecture.channels, architecture.labels
    names = [str(number) for number in range(classes)] or None
    with PyramidWriter(path, side, channels, {"kind": "noise"}, class_names=names) as writer:
        for number in range(IMAGES):
            image = source.integers(0, 256, (side, side, channels), np.uint8)
            writer.add(image, number % classes if classes else None)
    return ImagePyramid(path)
