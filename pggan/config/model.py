"""Keys of the method: the networks, their growth and their optimizers."""

from dataclasses import dataclass
from enum import Enum
from math import inf

from pggan.config.notation import PerLevel, table
from pggan.core.architecture import (
    MOST,
    SMALLEST_RESOLUTION,
    Architecture,
    Resampling,
    is_power_of_two,
    resolutions_between,
)
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.core.validation import require


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The two networks."""

    latent_size: int | None
    fmap_base: int
    fmap_decay: float
    fmap_max: int
    stddev_group: int
    resampling: Resampling

    def __post_init__(self) -> None:
        for key in ("fmap_base", "fmap_max", "stddev_group", "latent_size"):
            value = getattr(self, key)
            require(value is None or 1 <= value <= MOST[key], f"model.{key}", value, f"at least 1, at most {MOST[key]}")
        require(0 <= self.fmap_decay < inf, "model.fmap_decay", self.fmap_decay, "from 0 up to below infinity")

    def require_whole_groups(self, key: str, batch: int) -> None:
        """Raise UserError unless a `batch`, from `key`, divides into groups for minibatch stddev."""
        group = self.stddev_group
        if batch % min(group, batch):
            raise UserError(
                f"A batch of {batch} ({key}) does not divide into groups of model.stddev_group={group}.",
                f"Take a batch of {batch // group * group} or {-(-batch // group) * group}, or another stddev_group.",
            )

    def architecture(self, resolution: int, channels: int, labels: int) -> Architecture:
        """The networks for images of `resolution` and `channels`, with `labels` classes (0 for none)."""
        widest = min(self.fmap_base, self.fmap_max)
        return Architecture(
            resolution=resolution,
            channels=channels,
            labels=labels,
            latent_size=self.latent_size or widest,
            fmap_base=self.fmap_base,
            fmap_decay=self.fmap_decay,
            fmap_max=self.fmap_max,
            stddev_group=self.stddev_group,
            resampling=self.resampling,
        )


class LearningRateRule(Enum):
    """What becomes of learning rates when batches grow by a factor."""

    constant = "constant"
    sqrt = "sqrt"
    linear = "linear"

    def factor(self, batch_factor: int) -> float:
        """What they are multiplied by."""
        return float(batch_factor ** {"constant": 0.0, "sqrt": 0.5, "linear": 1.0}[self.value])


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Growth, batch and learning rates."""

    first_resolution: int
    final_resolution: int
    stable_images: PerLevel
    fade_images: PerLevel
    batch: PerLevel
    learning_rate_g: PerLevel
    learning_rate_d: PerLevel
    batch_factor: int
    learning_rate_rule: LearningRateRule
    warm_up_images: int
    decay_images: int
    total_images: int | None

    def __post_init__(self) -> None:
        for key in ("first_resolution", "final_resolution"):
            value = getattr(self, key)
            if value < SMALLEST_RESOLUTION or not is_power_of_two(value):
                raise UserError(
                    f"schedule.{key}={value} is not a power of two of at least {SMALLEST_RESOLUTION}.",
                    f"Take one of {', '.join(map(str, resolutions_between(4, 1024)))} …",
                )
        if self.first_resolution > self.final_resolution:
            raise UserError(
                f"schedule.first_resolution={self.first_resolution} is above "
                f"schedule.final_resolution={self.final_resolution}.",
                "Training grows upwards: lower the first or raise the final one.",
            )
        require(self.batch_factor >= 1, "schedule.batch_factor", self.batch_factor, "at least 1")
        require(self.warm_up_images >= 0, "schedule.warm_up_images", self.warm_up_images, "at least 0")
        require(self.decay_images >= 0, "schedule.decay_images", self.decay_images, "at least 0")
        if self.total_images is not None:
            require(self.total_images >= 1, "schedule.total_images", self.total_images, "at least 1, or null")
        if self.build().total == 0:
            raise UserError(
                "schedule.stable_images and schedule.fade_images are 0 for every resolution.",
                "Give at least one of them images to show.",
            )

    def build(self) -> Schedule:
        """The schedule; raises UserError for an entry that can't be used."""
        first = self.first_resolution
        return Schedule(
            first_resolution=first,
            final_resolution=self.final_resolution,
            stable_images=table("schedule.stable_images", self.stable_images, first, least=0, whole=True),
            fade_images=table("schedule.fade_images", self.fade_images, first * 2, least=0, whole=True),
            batch=table("schedule.batch", self.batch, first, least=1, whole=True),
            learning_rate_g=table("schedule.learning_rate_g", self.learning_rate_g, first, least=0),
            learning_rate_d=table("schedule.learning_rate_d", self.learning_rate_d, first, least=0),
            batch_factor=self.batch_factor,
            learning_rate_factor=self.learning_rate_rule.factor(self.batch_factor),
            warm_up_images=self.warm_up_images,
            decay_images=self.decay_images,
            total_images=self.total_images,
        )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam, for both networks."""

    beta1: float
    beta2: float
    epsilon: float
    reset_at_phase: bool

    def __post_init__(self) -> None:
        for key in ("beta1", "beta2"):
            require(0 <= getattr(self, key) < 1, f"optimizer.{key}", getattr(self, key), "from 0 up to below 1")
        require(0 < self.epsilon < inf, "optimizer.epsilon", self.epsilon, "above 0")


@dataclass(frozen=True, kw_only=True)
class AverageConfig:
    """The averaged generator."""

    half_life_images: float | None
    ramp_up: float | None
    decay_per_step: float | None

    def __post_init__(self) -> None:
        if (self.half_life_images is None) == (self.decay_per_step is None):
            raise UserError(
                "The averaged generator needs exactly one of average.half_life_images and average.decay_per_step.",
                "Set one to null: 'average.half_life_images=null average.decay_per_step=0.999' is the paper's.",
            )
        half_life, ramp_up, decay = self.half_life_images, self.ramp_up, self.decay_per_step
        require(half_life is None or 0 < half_life < inf, "average.half_life_images", half_life, "above 0, or null")
        require(ramp_up is None or 0 < ramp_up < inf, "average.ramp_up", ramp_up, "above 0, or null")
        require(decay is None or 0 <= decay < 1, "average.decay_per_step", decay, "from 0 up to below 1, or null")
