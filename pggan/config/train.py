"""The keys of a training run: one dataclass per section of configs/train.yaml, which explains each key."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pggan.core.architecture import MIN_RESOLUTION, Architecture, Precision, Resampling
from pggan.core.errors import require
from pggan.core.schedule import PerResolution, Schedule

if TYPE_CHECKING:
    from pggan.training.build import TrainerSettings  # imports torch, which is slow

Whole = Annotated[int, ">=0"]
Count = Annotated[int, ">=1"]
Positive = Annotated[float, ">0"]
NotNegative = Annotated[float, ">=0"]
Resolution = Literal[4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]
# A key of these types takes one number for all resolutions, or a table {resolution: number}.
Images = Whole | dict[Resolution, Whole]
Batches = Count | dict[Resolution, Count]
Rates = NotNegative | dict[Resolution, NotNegative]
Channels = Literal[1, 3, 4]  # grey, colour, with transparency

FINGERPRINTS = {"efficientnet-lite0": "pggan.networks.efficientnet_lite0:backbone_fingerprint"}  # by model.features
MAX_TILES = 10_000  # maximum number of images in a grid


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Keys that describe the training images."""

    path: str | None
    count: Count
    cache: str
    crop: Literal["center", "resize", "pad", "faces"]
    channels: Channels | None
    labels: bool
    mirror: bool

    @property
    def origin(self) -> dict[str, Any]:
        """The keys and values that determine the prepared images: all except `mirror`, which acts during training."""
        return {name: value for name, value in vars(self).items() if name != "mirror"}


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Keys of the generator and discriminator networks."""

    fmap_base: Annotated[int, ">=1 <=16777216"]
    fmap_max: Annotated[int, ">=1 <=65536"]
    stddev_group: Count
    resampling: Resampling
    blur: bool
    bilateral: Whole
    residual: bool
    features: Literal["efficientnet-lite0"] | None
    features_from: Annotated[Resolution, ">=8"]
    discriminator: str | None

    def architecture(self, resolution: int, channels: int, num_classes: int) -> Architecture:
        """Build the architecture of G and D; raises UserError if a value does not fit the images or another value."""
        sizes = vars(self) | {"latent_size": min(self.fmap_base, self.fmap_max), "fmap_decay": 1.0}
        if self.discriminator is not None:
            require(self.features is None, "model.features", self.features, "null with another discriminator")
            require(num_classes == 0, "data.labels", "true", "false with another discriminator")
        if self.features is not None:
            require(channels in (1, 3), "model.features", self.features, f"null for images of {channels} channels")
            sizes["features"] = resolve_name(FINGERPRINTS[self.features])()
        return Architecture(resolution=resolution, channels=channels, num_classes=num_classes, **sizes)


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Keys of progressive growing, batch sizes and learning rates."""

    first_resolution: Resolution
    final_resolution: Resolution
    stable_images: Images
    fade_images: Images
    batch: Batches
    learning_rate_g: Rates
    learning_rate_d: Rates
    batch_factor: Count
    lr_warmup_images: Whole
    lr_decay_images: Whole
    total_images: Count | None

    def __post_init__(self) -> None:
        first, final = self.first_resolution, self.final_resolution
        below = f"at most schedule.final_resolution={final}: training goes from low to high resolutions"
        require(first <= final, "schedule.first_resolution", first, below)
        require(self.build().total > 0, "schedule.stable_images", self.stable_images, "above 0 for one resolution")

    def build(self) -> Schedule:
        """Build the schedule; raises UserError if a table {resolution: number} begins above the first resolution."""
        first: int = self.first_resolution
        firsts = dict.fromkeys(("stable_images", "batch", "learning_rate_g", "learning_rate_d"), first)
        firsts["fade_images"] = 2 * first
        tables = {key: per_resolution(f"schedule.{key}", getattr(self, key), first) for key, first in firsts.items()}
        return Schedule(**{**vars(self), **tables}, learning_rate_factor=self.batch_factor**0.5)


@dataclass(frozen=True, kw_only=True)
class WganGpConfig:
    """Keys of the WGAN-GP loss, which includes the drift penalty."""

    name: Literal["wgan_gp"]
    penalty_weight: NotNegative
    target: NotNegative
    reg_interval: Count


@dataclass(frozen=True, kw_only=True)
class R1Config:
    """Keys of the non-saturating logistic loss with R1 penalty, and of the relativistic loss with R1 and R2."""

    name: Literal["logistic", "relativistic"]
    gamma: NotNegative | Literal["auto"]
    reg_interval: Count


@dataclass(frozen=True, kw_only=True)
class OwnLossConfig:
    """Keys of a loss that Python code passes to the function `pggan.train` as its argument `loss`."""

    name: Literal["object"]
    type: str | None


@dataclass(frozen=True, kw_only=True)
class NoAugmentationConfig:
    """The only key of augmentation=none is `name`."""

    name: Literal["none"]


@dataclass(frozen=True, kw_only=True)
class AdaConfig:
    """Keys of adaptive discriminator augmentation (ADA)."""

    name: Literal["ada"]
    rampup_images: Count


@dataclass(frozen=True, kw_only=True)
class PlainGradientsConfig:
    """Keys of the all-reduce of gradients in float32 or bfloat16."""

    name: Literal["fp32", "bf16"]


@dataclass(frozen=True, kw_only=True)
class DgcConfig:
    """Keys of deep gradient compression (DGC), which sends only the largest gradients."""

    name: Literal["dgc"]
    ratio: Annotated[float, ">0 <=1"]
    warmup_images: Whole


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Keys that change the speed and memory of a training step; results change only by rounding errors."""

    kernels: Literal["auto", "reference"]
    micro_batch_size: Count | None
    cuda_graphs: Literal["auto", "on", "off"]
    deterministic: bool


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """Keys of the averaged generator, an exponential moving average (EMA) of G's weights."""

    half_life_images: Positive | None
    rampup: Positive | None
    decay_per_update: Annotated[float, ">=0 <1"] | None

    def __post_init__(self) -> None:
        one_is_given = (self.half_life_images is None) != (self.decay_per_update is None)
        wanted = "null if ema.decay_per_update= is a number (0.999 in the paper), else a number"
        require(one_is_given, "ema.half_life_images", self.half_life_images, wanted)


@dataclass(frozen=True, kw_only=True)
class DistributedConfig:
    """Keys of training on several machines, and of restarts after a rank fails."""

    nnodes: Count
    rdzv_endpoint: str | None
    max_restarts: Whole
    heartbeat_timeout_seconds: Annotated[float, ">=5"]
    elastic_chunks: Count

    def __post_init__(self) -> None:
        given, wanted = self.rdzv_endpoint, "HOST:PORT of one of the machines, the same on every machine"
        host, _, port = (given or "").rpartition(":")
        good = self.nnodes == 1 if given is None else host != "" and port in map(str, range(1, 65536))
        require(good, "distributed.rdzv_endpoint", given, wanted)

    @property
    def launcher(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("nnodes", "rdzv_endpoint", "max_restarts")}


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Keys of progress reports: numbers, and grids of generated images."""

    tick_images: Count
    grid_images: Count
    grid: str
    marks: bool

    def __post_init__(self) -> None:
        parse_grid(self.grid, "monitor.grid")


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Keys of evaluations, which compute metrics of G, such as FID, during training."""

    max_share: ClassVar[float] = 0.05  # without interval_images, evaluations take at most this share of training time

    metrics: list[str]
    extractor: str
    count: Annotated[int, ">=2"]
    interval_images: Count | None

    @property
    def share(self) -> float:
        """The share of the training time that hours= reserves for evaluations."""
        return self.max_share if self.metrics and self.interval_images is None else 0.0


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Keys that say when training writes, deletes and reloads checkpoints."""

    every_images: Count
    every_minutes: Positive | None
    keep: Count
    roll_back_after: Count


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """All keys of a training run."""

    model: ModelConfig
    loss: WganGpConfig | R1Config | OwnLossConfig
    augmentation: NoAugmentationConfig | AdaConfig
    gradients: PlainGradientsConfig | DgcConfig
    precision: Precision
    compute: ComputeConfig
    seed: int
    threads: Count | None
    elastic: bool
    distributed: DistributedConfig
    name: str
    run_dir: str | None
    hours: Positive | None
    grow: str | None
    resume: str
    allow_changes: list[str]
    init_from: str | None
    devices: str
    data: DataConfig
    schedule: ScheduleConfig
    ema: EmaConfig
    monitor: ReportConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig

    def __post_init__(self) -> None:
        exact = not self.elastic or self.gradients.name == "fp32"
        require(exact, "gradients", self.gradients.name, "fp32 if elastic=true, which bf16 and dgc do not support")
        if isinstance(self.loss, R1Config) and self.loss.gamma == "auto":
            last = self.schedule.build().phases[-1]
            # loss.gamma=auto is replaced by a number here, so that reports and checkpoints show this number.
            object.__setattr__(self, "loss", replace(self.loss, gamma=gamma_by_rule(last.resolution, last.batch)))

    def trainer_settings(self) -> "TrainerSettings":
        from pggan.losses import build_loss
        from pggan.training.build import TrainerSettings

        return TrainerSettings(
            loss=build_loss(vars(self.loss)),
            ada_rampup_images=self.augmentation.rampup_images if isinstance(self.augmentation, AdaConfig) else None,
            precision=self.precision,
            seed=self.seed,
            gradients=vars(self.gradients),
            elastic=self.elastic,
            elastic_chunks=self.distributed.elastic_chunks,
            micro_batch_size=self.compute.micro_batch_size,
            reference=self.compute.kernels == "reference",
            cuda_graphs=self.compute.cuda_graphs != "off",
        )


def gamma_by_rule(resolution: int, batch: int, least: float = 1.0) -> float:
    """R1's gamma as in StyleGAN2-ADA, at least `least`: lower values gave worse images up to 64x64 (docs/lab.md)."""
    return float(f"{max(0.0002 * resolution**2 / batch, least):.2g}")


def parse_grid(grid: str, key: str) -> tuple[int, int]:
    """The columns and rows of a `grid` such as '8x4'; raises UserError, which names `key`, for any other format."""
    columns, _, rows = grid.partition("x")
    good = columns.isdecimal() and rows.isdecimal() and 0 < int(columns) * int(rows) <= MAX_TILES
    require(good, key, grid, f"columns x rows, for example 8x4; maximum number of images: {MAX_TILES}")
    return int(columns), int(rows)


def per_resolution(key: str, value: float | Mapping[Any, float], first: int) -> PerResolution:
    """Convert a number or table to {resolution: number}; raises UserError if every resolution exceeds `first`."""
    entries = value if isinstance(value, Mapping) else {MIN_RESOLUTION: value}
    begins = min(entries, default=inf) <= first
    require(begins, key, value, f"one number, or a table that begins at resolution {first} or lower")
    return entries
