"""The schedule: resolution, alpha (weight of the newest layers), batch size and learning rates by images shown to D.

Source: paper appendix A.1; official `TrainingSchedule`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from pggan.core.architecture import resolutions_between

PerResolution = Mapping[int, float]  # {resolution: value}; a value also holds for higher resolutions up to the next key


def value_at(values: PerResolution, resolution: int) -> float:
    """The value for `resolution`, else for the next lower resolution in `values`; raises KeyError if there is none."""
    return values[max((key for key in values if key <= resolution), default=resolution)]


@dataclass(frozen=True)
class Phase:
    """A training phase at one resolution.  `Schedule.at` returns a phase with alpha and learning rates of one step."""

    index: int
    resolution: int
    fading: bool
    alpha: float  # weight of the newest layers, 0 to 1
    start: int  # images shown when the phase begins
    end: int
    batch: int  # images per training step, summed over all ranks
    learning_rate_g: float
    learning_rate_d: float
    missing_levels: int  # number of doublings from this resolution to the final resolution

    @property
    def name(self) -> str:
        return f"{self.resolution}x{self.resolution} {'fade' if self.fading else 'stable'}"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Progressive growing: a stable phase, then a fading and a stable phase for each doubling of the resolution."""

    first_resolution: int
    final_resolution: int
    stable_images: PerResolution
    fade_images: PerResolution
    batch: PerResolution
    learning_rate_g: PerResolution
    learning_rate_d: PerResolution
    batch_factor: int = 1
    learning_rate_factor: float = 1.0
    lr_warmup_images: int = 0  # at the start of a phase, learning rates rise linearly from 0 over this many images
    lr_decay_images: int = 0  # at the end of training, learning rates fall linearly to 0 over this many images
    total_images: int | None = None  # training ends after this many images (None: sum of all phases)

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """All non-empty phases.  Alpha is the value at a phase's start; learning rates are without warmup and decay."""
        phases: list[Phase] = []
        start = 0
        levels = resolutions_between(self.first_resolution, self.final_resolution)
        for resolution, fading in [(level, fading) for level in levels for fading in (True, False)][1:]:
            last = resolution == self.final_resolution and not fading
            end = start + int(value_at(self.fade_images if fading else self.stable_images, resolution))
            end = max(end, self.total_images or 0) if last else end
            if end > start or last:
                phase = Phase(
                    index=len(phases),
                    resolution=resolution,
                    fading=fading,
                    alpha=0.0 if fading else 1.0,
                    start=start,
                    end=end,
                    batch=int(value_at(self.batch, resolution)) * self.batch_factor,
                    learning_rate_g=value_at(self.learning_rate_g, resolution) * self.learning_rate_factor,
                    learning_rate_d=value_at(self.learning_rate_d, resolution) * self.learning_rate_factor,
                    missing_levels=self.final_resolution.bit_length() - resolution.bit_length(),
                )
                phases.append(phase)
            start = end
        return tuple(phases)

    @property
    def total(self) -> int:
        return self.phases[-1].end if self.total_images is None else self.total_images

    @property
    def decay_images(self) -> int:
        return min(self.lr_decay_images, self.total // 2)

    @property
    def growth_images(self) -> tuple[int, ...]:
        """The number of images of each phase but the last."""
        return tuple(phase.end - phase.start for phase in self.phases[:-1])

    def with_growth(self, images: Sequence[int]) -> "Schedule":
        """A new schedule: phase i has `images[i]` (positive) images; the last phase has no entry in `images`."""
        levels = resolutions_between(self.first_resolution, self.final_resolution)
        stable = {level: value_at(self.stable_images, level) for level in levels}
        fade = {level: value_at(self.fade_images, level) for level in levels[1:]}
        for phase, count in zip(self.phases[:-1], images, strict=True):
            (fade if phase.fading else stable)[phase.resolution] = count
        return replace(self, stable_images=stable, fade_images=fade)

    def steps(self) -> tuple[int, ...]:
        """The number of training steps that begin in each phase."""
        counts, images = [], 0
        for phase in self.phases:
            counts.append(max(-(-(min(phase.end, self.total) - images) // phase.batch), 0))
            images += counts[-1] * phase.batch
        return tuple(counts)

    def images_between(self, before: int, after: int) -> tuple[int, ...]:
        """How many images of each phase are shown between the image counts `before` and `after`."""
        return tuple(max(min(phase.end, after) - max(phase.start, before), 0) for phase in self.phases)

    def at(self, images: int) -> Phase:
        """The phase, with alpha and learning rates, of the training step that begins after `images` images."""
        phase = next((phase for phase in self.phases if images < phase.end), self.phases[-1])
        alpha = (images - phase.start) / (phase.end - phase.start) if phase.fading else 1.0
        ahead = max(self.total - images, 0)
        decay = ahead / self.decay_images if ahead < self.decay_images else 1.0
        warm = images + phase.batch - phase.start  # images of this phase shown by the end of this step
        factor = decay * (warm / self.lr_warmup_images if warm < self.lr_warmup_images else 1.0)
        rate_g, rate_d = phase.learning_rate_g * factor, phase.learning_rate_d * factor
        return replace(phase, alpha=alpha, learning_rate_g=rate_g, learning_rate_d=rate_d)


@dataclass
class Course:
    """Holds the current schedule of a run; with hours=, training may replace the schedule."""

    schedule: Schedule

    def at(self, images: int) -> Phase:
        return self.schedule.at(images)


def is_due(every: int, before: int, after: int) -> bool:
    """Whether the step from image count `before` to `after` reaches a multiple of `every`."""
    return after // every > before // every
