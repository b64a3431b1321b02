"""Keys of the growth, the batch and the learning rates."""

from dataclasses import dataclass
from enum import Enum

from pggan.config.parse import RawPerResolution, per_resolution
from pggan.core.architecture import MIN_RESOLUTION, is_power_of_two
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.core.validation import require, require_bounds


class LearningRateScaling(Enum):
    """The power of `batch_factor` that multiplies the learning rates."""

    constant = 0.0
    sqrt = 0.5
    linear = 1.0


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Growth, batch and learning rates."""

    first_resolution: int
    final_resolution: int
    stable_images: RawPerResolution
    fade_images: RawPerResolution
    batch: RawPerResolution
    learning_rate_g: RawPerResolution
    learning_rate_d: RawPerResolution
    batch_factor: int
    learning_rate_scaling: LearningRateScaling
    lr_warmup_images: int
    lr_decay_images: int
    total_images: int | None
    max_growth_share: float | None = None

    def __post_init__(self) -> None:
        first, final = self.first_resolution, self.final_resolution
        for key, value in (("first_resolution", first), ("final_resolution", final)):
            valid = value >= MIN_RESOLUTION and is_power_of_two(value)
            require(valid, f"schedule.{key}", value, "a power of two from 4 up: 4, 8, 16 … 1024 or more")
        if first > final:
            problem = f"schedule.first_resolution={first} is above schedule.final_resolution={final}."
            raise UserError(problem, "Training grows upwards: lower the first or raise the final one.")
        bounds = {"batch_factor": ">=1", "lr_warmup_images": ">=0", "lr_decay_images": ">=0", "total_images": ">=1"}
        bounds["max_growth_share"] = ">0 <=1"
        require_bounds(self, "schedule.", **bounds)
        if self.build().total == 0:
            problem = "schedule.stable_images and schedule.fade_images are 0 for every resolution."
            raise UserError(problem, "Give at least one of them images to show.")

    def build(self) -> Schedule:
        """The schedule; raises UserError for an entry that can't be used."""
        first = self.first_resolution
        return Schedule(
            first_resolution=first,
            final_resolution=self.final_resolution,
            stable_images=per_resolution("schedule.stable_images", self.stable_images, first, least=0, whole=True),
            fade_images=per_resolution("schedule.fade_images", self.fade_images, first * 2, least=0, whole=True),
            batch=per_resolution("schedule.batch", self.batch, first, least=1, whole=True),
            learning_rate_g=per_resolution("schedule.learning_rate_g", self.learning_rate_g, first, least=0),
            learning_rate_d=per_resolution("schedule.learning_rate_d", self.learning_rate_d, first, least=0),
            batch_factor=self.batch_factor,
            learning_rate_factor=float(self.batch_factor**self.learning_rate_scaling.value),
            lr_warmup_images=self.lr_warmup_images,
            lr_decay_images=self.lr_decay_images,
            total_images=self.total_images,
        )
