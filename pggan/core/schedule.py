"""When resolution, alpha, batch and learning rates change: a pure function of the images shown.  Stdlib only.

Images shown (real images that the discriminator has seen) is the only clock of the whole trainer.
Source: paper appendix A.1; official `TrainingSchedule`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from pggan.core.architecture import resolutions_between

Table = Mapping[int, float]  # {resolution: value}; a value holds from its resolution up to the next one listed


def table_at(table: Table, resolution: int) -> float:
    """The value in force at `resolution`: that of the highest listed resolution not above it.

    Raises KeyError when the table starts above `resolution`.
    """
    listed = [key for key in table if key <= resolution]
    if not listed:
        raise KeyError(resolution)
    return table[max(listed)]


@dataclass(frozen=True)
class Phase:
    """The values in force at one image count."""

    index: int  # position in the schedule: 0, 1, 2 …
    resolution: int
    fading: bool  # new layers are being faded in
    alpha: float  # weight of the newest layers, 0 to 1; 1 when not fading
    start: int  # images shown at which the phase begins
    end: int  # … and at which the next one begins
    batch: int  # images per update, over all processes
    learning_rate_g: float
    learning_rate_d: float
    missing_levels: int  # doublings still ahead of the final resolution

    @property
    def name(self) -> str:
        kind = "fade" if self.fading else "stable"
        return f"{self.resolution}x{self.resolution} {kind}"


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Growth from `first_resolution` to `final_resolution`: stable, then (fade, stable) per doubling."""

    first_resolution: int
    final_resolution: int
    stable_images: Table
    fade_images: Table
    batch: Table
    learning_rate_g: Table
    learning_rate_d: Table
    batch_factor: int = 1  # all batches times this
    learning_rate_factor: float = 1.0  # … and both learning rates times this
    lr_warmup_images: int = 0  # over this many first images of every phase both learning rates rise linearly from 0
    lr_decay_images: int = 0  # over this many last images both learning rates fall linearly to 0
    total_images: int | None = None  # None: to the end of the last stable phase; more: the last phase goes on

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """All phases in order, each with the alpha of its first image; empty phases are left out."""
        phases: list[Phase] = []
        start = 0
        for resolution in resolutions_between(self.first_resolution, self.final_resolution):
            for fading, table in ((True, self.fade_images), (False, self.stable_images)):
                if fading and resolution == self.first_resolution:
                    continue
                last = resolution == self.final_resolution and not fading
                end = start + int(table_at(table, resolution))
                if last and self.total_images is not None:
                    end = max(end, self.total_images)
                if end > start or last:
                    phases.append(self._phase(len(phases), resolution, fading, start, end))
                start = end
        return tuple(phases)

    @property
    def total(self) -> int:
        """Images shown at which training is complete."""
        return self.phases[-1].end if self.total_images is None else self.total_images

    def updates(self) -> tuple[int, ...]:
        """How many updates each of the phases takes; a phase begins with the first update after the one before."""
        counts, images = [], 0
        for phase in self.phases:
            counts.append(max(-(-(min(phase.end, self.total) - images) // phase.batch), 0))
            images += counts[-1] * phase.batch
        return tuple(counts)

    def at(self, images: int) -> Phase:
        """The phase in force when `images` real images have been shown."""
        phase = next((phase for phase in self.phases if images < phase.end), self.phases[-1])
        alpha = (images - phase.start) / (phase.end - phase.start) if phase.fading else 1.0
        ahead = max(self.total - images, 0)
        decay = ahead / self.lr_decay_images if ahead < self.lr_decay_images else 1.0
        warm = images + phase.batch - phase.start  # after this step
        factor = decay * (warm / self.lr_warmup_images if warm < self.lr_warmup_images else 1.0)
        return replace(
            phase,
            alpha=alpha,
            learning_rate_g=phase.learning_rate_g * factor,
            learning_rate_d=phase.learning_rate_d * factor,
        )

    def _phase(self, index: int, resolution: int, fading: bool, start: int, end: int) -> Phase:
        return Phase(
            index=index,
            resolution=resolution,
            fading=fading,
            alpha=0.0 if fading else 1.0,
            start=start,
            end=end,
            batch=int(table_at(self.batch, resolution)) * self.batch_factor,
            learning_rate_g=table_at(self.learning_rate_g, resolution) * self.learning_rate_factor,
            learning_rate_d=table_at(self.learning_rate_d, resolution) * self.learning_rate_factor,
            missing_levels=self.final_resolution.bit_length() - resolution.bit_length(),
        )
