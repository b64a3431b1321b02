"""The schema of every key, and the checks between keys.  No torch here: a typo must be found in a second.

Values live in `configs/*.yaml`, each with a comment; this file says which keys exist and what they may be.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pggan.architecture import (
    SMALLEST_RESOLUTION,
    Architecture,
    Resampling,
    is_power_of_two,
    resolutions_between,
)
from pggan.errors import UserError
from pggan.losses import require_loss
from pggan.schedule import Schedule, Table, table_at
from pggan.schema import require

PerLevel = Any  # one number for all resolutions, or {resolution: number}; OmegaConf has no type for that


class Crop(Enum):
    """How an image that is not square becomes square."""

    center = "center"
    resize = "resize"
    pad = "pad"
    face = "face"


class OnBad(Enum):
    """What to do about files that can't be used."""

    report = "report"
    stop = "stop"


class InterpolationPath(Enum):
    """How an interpolation gets from one latent to the next."""

    slerp = "slerp"
    lerp = "lerp"
    loop = "loop"
    walk = "walk"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train on."""

    path: str | None
    style: str
    count: int
    cache: str
    crop: Crop
    channels: int | None
    labels: bool
    mirror: bool
    verify: bool
    device_budget_mib: int | None

    def __post_init__(self) -> None:
        require(self.count >= 1, "data.count", self.count, "at least 1")
        budget = self.device_budget_mib
        require(budget is None or budget >= 0, "data.device_budget_mib", budget, "at least 0, or null")


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
            require(value is None or value >= 1, f"model.{key}", value, "at least 1")

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
        require(self.decay_images >= 0, "schedule.decay_images", self.decay_images, "at least 0")
        if self.total_images is not None:
            require(self.total_images >= 1, "schedule.total_images", self.total_images, "at least 1, or null")
        self.build()

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


@dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """What is reported, and how often."""

    tick_images: int
    grid_images: int
    grid: str

    def __post_init__(self) -> None:
        require(self.tick_images >= 1, "monitor.tick_images", self.tick_images, "at least 1")
        require(self.grid_images >= 1, "monitor.grid_images", self.grid_images, "at least 1")
        parse_grid(self.grid, "monitor.grid")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the state is saved, and how much of it is kept."""

    every_images: int
    keep: int

    def __post_init__(self) -> None:
        require(self.every_images >= 1, "checkpoint.every_images", self.every_images, "at least 1")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "at least 1")


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything about one training run."""

    name: str
    run_dir: str | None
    resume: str
    seed: int
    devices: str
    data: DataConfig
    model: ModelConfig
    schedule: ScheduleConfig
    loss: dict[str, Any]
    optimizer: OptimizerConfig
    average: AverageConfig
    monitor: MonitorConfig
    checkpoint: CheckpointConfig

    def __post_init__(self) -> None:
        require_loss(str(self.loss.get("name")))
        for phase in self.schedule.build().phases:
            self.model.require_whole_groups("schedule.batch", phase.batch)


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Images to a pyramid."""

    source: Any
    dest: str | None
    max_resolution: int | None
    crop: Crop
    keep: float
    landmarks: str | None
    channels: int | None
    labels: Any
    on_bad: OnBad
    check: bool
    report: str | None
    workers: int | None
    root: str
    split: str
    download: bool

    def __post_init__(self) -> None:
        require(0 < self.keep <= 1, "keep", self.keep, "more than 0 and at most 1")
        require(isinstance(self.labels, bool | str), "labels", self.labels, "true, false or the path of a file")
        require(self.workers is None or self.workers >= 1, "workers", self.workers, "at least 1, or null")


@dataclass(frozen=True, kw_only=True)
class DrawConfig:
    """Which generator draws which faces, and where they go."""

    run: str
    seeds: Any
    resolution: int | None
    alpha: float | None
    truncation: float
    label: int | None
    grid: str | None
    zoom: int
    out: str
    devices: str

    def __post_init__(self) -> None:
        require(self.zoom >= 1, "zoom", self.zoom, "at least 1")


@dataclass(frozen=True, kw_only=True)
class SampleConfig(DrawConfig):
    """Images from a generator."""


@dataclass(frozen=True, kw_only=True)
class InterpolateConfig(DrawConfig):
    """Images between latents."""

    path: InterpolationPath
    frames: int
    fps: int
    smoothness: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.frames >= 2, "frames", self.frames, "at least 2")
        require(self.fps >= 1, "fps", self.fps, "at least 1")
        require(self.smoothness >= 0, "smoothness", self.smoothness, "at least 0")


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """A run or a data set as a table."""

    run: str | None
    data: str | None
    json: bool
    sheet: str | None
    verify: bool


@dataclass(frozen=True, kw_only=True)
class BenchDataConfig:
    """Throughput of loading."""

    path: str | None
    batches: int
    device_budget_mib: int | None

    def __post_init__(self) -> None:
        require(self.batches >= 1, "data.batches", self.batches, "at least 1")
        budget = self.device_budget_mib
        require(budget is None or budget >= 0, "data.device_budget_mib", budget, "at least 0, or null")


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Throughput of the training step, or of loading beside it."""

    data: BenchDataConfig
    stages: Any
    batch: PerLevel
    steps: int
    warmup: int
    devices: str
    json: bool
    out: str | None
    model: ModelConfig
    loss: dict[str, Any]

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "at least 1")
        require(self.warmup >= 0, "warmup", self.warmup, "at least 0")
        stages = self.stages if isinstance(self.stages, list) else [self.stages]
        for stage in stages:
            valid = isinstance(stage, int) and stage >= SMALLEST_RESOLUTION and is_power_of_two(stage)
            require(valid, "stages", self.stages, "resolutions: powers of two from 4, for example [4,8,16]")
            batch = table_at(table("batch", self.batch, stage, least=1, whole=True), stage)
            self.model.require_whole_groups("batch", int(batch))


# ---- values ----------------------------------------------------------------------------------------------


def parse_grid(grid: str, key: str) -> tuple[int, int]:
    """Columns and rows of a grid written as '8x4'."""
    columns, _, rows = grid.partition("x")
    if not (columns.isdecimal() and rows.isdecimal() and int(columns) > 0 and int(rows) > 0):
        raise UserError(f"{key}={grid} is not a grid.", "Write columns x rows, for example 8x4.")
    return int(columns), int(rows)


def parse_seeds(seeds: object) -> list[int]:
    """Seeds written as 5, '0-63', '1,5,9-12' or [1, 5, 9]."""
    parts = seeds if isinstance(seeds, list) else str(seeds).split(",")
    found: list[int] = []
    for part in map(str, parts):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()) or (dash and int(last) < int(first)):
            raise UserError(f"seeds={seeds} can't be read: '{part}'.", "Write seeds=5, seeds=0-63 or seeds=[1,5,9].")
        found.extend(range(int(first), int(last or first) + 1))
    return found


def table(key: str, value: PerLevel, first: int, *, least: float, whole: bool = False) -> Table:
    """The per-level `value` of `key` as a table that covers every resolution from `first` up.

    Raises UserError unless its entries are numbers (whole ones if `whole`) of at least `least`.
    """
    entries = dict(value) if isinstance(value, Mapping) else {SMALLEST_RESOLUTION: value}
    for resolution, entry in entries.items():
        if not isinstance(resolution, int) or not is_power_of_two(resolution):
            raise UserError(
                f"{key} has an entry for '{resolution}', which is not a resolution.",
                f"Write resolutions as numbers, for example '{key}={{4: 16, 64: 8}}' (in quotes).",
            )
        number = isinstance(entry, int) or (isinstance(entry, float) and not whole)
        wanted = f"a {'whole ' if whole else ''}number of at least {least}"
        require(number and not isinstance(entry, bool) and entry >= least, key, entry, wanted)
    try:
        table_at(entries, first)
    except KeyError:
        raise UserError(
            f"{key} has no entry for {first}x{first}.",
            "Add one: an entry holds from its resolution up to the next one listed.",
        ) from None
    return entries
