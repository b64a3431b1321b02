"""The schema of every key, and the checks between keys.  No torch here: a typo must be found in a second.

Values live in `configs/*.yaml`, each with a comment; this file says which keys exist and what they may be.
"""

from dataclasses import dataclass
from enum import Enum
from math import inf
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
from pggan.schedule import Schedule, table_at
from pggan.schema import require
from pggan.values import PerLevel, parse_grid, table

BENCH_MODES = ("eager", "compiled", "graph", "compiled_graph")
PHASES = "phases"  # as checkpoint.milestones: the end of every phase


class Crop(Enum):
    """How an image that is not square becomes square."""

    center = "center"
    resize = "resize"
    pad = "pad"
    face = "face"


class Precision(Enum):
    """What activations and kernels are calculated in; weights, losses and penalties stay in float32."""

    auto = "auto"
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"


class ConvolutionMethod(Enum):
    """How 3x3 convolutions are calculated."""

    auto = "auto"
    native = "native"
    direct = "direct"
    winograd = "winograd"


class PenaltyPath(Enum):
    """How the gradient of a gradient penalty is calculated."""

    auto = "auto"
    autograd = "autograd"
    tangent = "tangent"


class Switch(Enum):
    """Something that is on, off, or decided by the program."""

    auto = "auto"
    on = "on"
    off = "off"


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
        require(half_life is None or half_life > 0, "average.half_life_images", half_life, "above 0, or null")
        require(ramp_up is None or ramp_up > 0, "average.ramp_up", ramp_up, "above 0, or null")
        require(decay is None or 0 <= decay < 1, "average.decay_per_step", decay, "from 0 up to below 1, or null")


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
    """When the state is saved, how much of it is kept, and when training goes back to it."""

    every_images: int
    every_minutes: float | None
    keep: int
    milestones: Any
    roll_back_after: int

    def __post_init__(self) -> None:
        require(self.every_images >= 1, "checkpoint.every_images", self.every_images, "at least 1")
        minutes = self.every_minutes
        require(minutes is None or 0 < minutes < inf, "checkpoint.every_minutes", minutes, "above 0, or null")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "at least 1")
        require(self.roll_back_after >= 1, "checkpoint.roll_back_after", self.roll_back_after, "at least 1")
        counts = self.milestones
        listed = isinstance(counts, list) and all(type(count) is int and count >= 1 for count in counts)
        wanted = "image counts, for example [100000,200000], or the word phases"
        require(listed or counts == PHASES, "checkpoint.milestones", counts, wanted)

    def is_milestone(self, schedule: Schedule, before: int, images: int) -> bool:
        """Whether the step from `before` to `images` reaches an image count whose checkpoint stays for good."""
        counts = [phase.end for phase in schedule.phases] if self.milestones == PHASES else self.milestones
        return any(before < count <= images for count in counts)


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Choices that change speed and memory, and results by rounding only."""

    convolution: ConvolutionMethod
    penalty: PenaltyPath
    micro_batch: int | None
    recompute: bool
    compile: bool
    cuda_graphs: Switch

    def __post_init__(self) -> None:
        micro = self.micro_batch
        require(micro is None or micro >= 1, "compute.micro_batch", micro, "at least 1, or null")
        tangent = self.penalty is not PenaltyPath.autograd
        if self.compile and not tangent:
            raise UserError(
                "compute.compile=true can't differentiate a compiled pass twice (compute.penalty=autograd).",
                "Take compute.penalty=tangent or auto.",
            )
        if self.recompute and (self.compile or self.penalty is PenaltyPath.tangent):
            raise UserError(
                "compute.recompute=true needs compute.penalty=autograd and compute.compile=false.",
                "Set these two, or take smaller micro-batches: they save memory, too.",
            )

    def require_whole_groups(self, group: int) -> None:
        """Raise UserError unless micro-batches hold whole groups of minibatch stddev."""
        if self.micro_batch is not None and self.micro_batch % group:
            raise UserError(
                f"compute.micro_batch={self.micro_batch} does not divide into groups of model.stddev_group={group}.",
                f"Take {max(self.micro_batch // group, 1) * group}.",
            )


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything about one training run."""

    name: str
    run_dir: str | None
    resume: str
    allow_changes: list[str]
    init_from: str | None
    seed: int
    devices: str
    precision: Precision
    compute: ComputeConfig
    data: DataConfig
    model: ModelConfig
    schedule: ScheduleConfig
    loss: dict[str, Any]
    optimizer: OptimizerConfig
    average: AverageConfig
    monitor: MonitorConfig
    checkpoint: CheckpointConfig

    def __post_init__(self) -> None:
        if self.init_from is not None and self.resume not in ("auto", "never"):
            raise UserError(
                "init_from= begins a new run, resume= goes on with one.",
                "Leave out one of them: resume= restores everything, init_from= takes over the weights only.",
            )
        require_loss(str(self.loss.get("name")))
        self.compute.require_whole_groups(self.model.stddev_group)
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
    precisions: list[str]
    modes: list[str]
    against: bool
    device: str
    json: bool
    out: str | None
    compute: ComputeConfig
    model: ModelConfig
    schedule: ScheduleConfig
    loss: dict[str, Any]

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "at least 1")
        require(self.warmup >= 0, "warmup", self.warmup, "at least 0")
        precisions = [precision.value for precision in Precision]
        require(bool(self.precisions), "precisions", self.precisions, f"some of {', '.join(precisions)}")
        for precision in self.precisions:
            require(precision in precisions, "precisions", precision, f"some of {', '.join(precisions)}")
        require(bool(self.modes), "modes", self.modes, f"some of {', '.join(BENCH_MODES)}")
        for mode in self.modes:
            require(mode in BENCH_MODES, "modes", mode, f"some of {', '.join(BENCH_MODES)}")
        stages = self.stages if isinstance(self.stages, list) else [self.stages]
        for stage in stages:
            valid = isinstance(stage, int) and stage >= SMALLEST_RESOLUTION and is_power_of_two(stage)
            require(valid, "stages", self.stages, "resolutions: powers of two from 4, for example [4,8,16]")
            batches = self.schedule.batch if self.batch is None else self.batch
            batch = table_at(table("batch", batches, stage, least=1, whole=True), stage)
            self.model.require_whole_groups("batch", int(batch))
