"""The keys of every command except `pggan train`: one dataclass per command."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pggan.config.train import (
    Batches,
    Channels,
    Count,
    DgcConfig,
    DistributedConfig,
    ModelConfig,
    PlainGradientsConfig,
    Positive,
    R1Config,
    Resolution,
    TrainConfig,
    WganGpConfig,
    per_resolution,
)
from pggan.core.architecture import Precision
from pggan.core.errors import UserError, require
from pggan.core.schedule import value_at

NEWEST, ALL = "newest", "all"
Port = Annotated[int, ">=0 <=65535"]


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """Keys of commands that load a generator from one checkpoint, or one generator from each checkpoint of a run."""

    run: str
    checkpoint: int | Literal["newest", "best", "all"]  # an int: training images shown before this checkpoint

    @property
    def generator_keys(self) -> dict[str, Any]:
        """The keys {key: value} that select the same generator in another command; default values are left out."""
        values = {name: getattr(self, name, None) for name in ("run", "checkpoint", "resolution", "alpha", "label")}
        return {name: value for name, value in values.items() if value not in (None, NEWEST, ALL)}


@dataclass(frozen=True, kw_only=True)
class GeneratorStageConfig(GeneratorConfig):
    """Keys of commands that run a generator at a chosen resolution and alpha (fade-in weight of the newest layers)."""

    resolution: int | None
    alpha: float | None


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Keys of every command that runs networks: the device, and the number of CPU threads."""

    device: str
    threads: Count | None


@dataclass(frozen=True, kw_only=True)
class DrawConfig(GeneratorStageConfig, DeviceConfig):
    """Keys of every command that draws images with a generator."""

    label: str | None
    marks: bool


@dataclass(frozen=True, kw_only=True)
class PicturesConfig(DrawConfig):
    """Keys of the commands that draw images from seeds or from files of latents."""

    seeds: Any
    latents: list[str] | None
    truncation: float
    grid: str | None
    zoom: Count | None
    out: str | None


@dataclass(frozen=True, kw_only=True)
class SampleConfig(PicturesConfig):
    """Keys of `pggan sample`, which draws images from a generator."""

    direction: str | None
    strength: list[int | float]


@dataclass(frozen=True, kw_only=True)
class InterpolateConfig(PicturesConfig):
    """Keys of `pggan interpolate`, which draws the images along a path through latent space."""

    path: Literal["slerp", "lerp", "loop", "walk"]
    frames: Annotated[int, ">=2"]
    fps: Count


@dataclass(frozen=True, kw_only=True)
class TimelapseConfig:
    """Keys of `pggan timelapse`, which makes a film of a whole training run."""

    run: str
    seconds: Positive
    fps: Count
    out: str | None
    marks: bool


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(DrawConfig):
    """Keys of `pggan project` (GAN inversion), which finds latents whose images are most similar to given images."""

    image: list[str]
    steps: Count
    out: str | None


@dataclass(frozen=True, kw_only=True)
class DirectionsConfig(DrawConfig):
    """Keys of `pggan directions`, which finds directions in latent space along which images change."""

    count: Count
    seeds: Any
    strength: Positive
    out: str | None


@dataclass(frozen=True, kw_only=True)
class ExploreConfig(GeneratorConfig, DeviceConfig):
    """Keys of `pggan explore`, which serves a web page that draws images with a generator."""

    directions: str | None
    port: Port | None
    open: bool
    marks: bool


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(GeneratorStageConfig, DeviceConfig):
    """Keys of `pggan evaluate`, which compares a generator's images with a data set by metrics such as FID."""

    data: str | None
    metrics: list[str]
    extractor: str
    count: Annotated[int, ">=2"] | None
    out: str | None
    json: bool
    marks: bool


@dataclass(frozen=True, kw_only=True)
class ExportConfig(GeneratorStageConfig):
    """Keys of `pggan export`, which writes a generator as safetensors, ONNX, a Hugging Face folder or a web page."""

    format: Literal["safetensors", "onnx", "hf", "web"]
    out: str
    license: str | None
    data_statement: str | None
    directions: str | None
    runtime: str | None
    marks: bool


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Keys of `pggan prepare`, which crops images, and writes them at every training resolution."""

    source: str
    dest: str
    max_resolution: Resolution | None
    crop: Literal["center", "resize", "pad", "faces"]
    landmarks: str | None
    channels: Channels | None
    labels: bool | str
    on_bad: Literal["report", "stop"]
    num_workers: Count | None

    def __post_init__(self) -> None:
        if self.landmarks is not None and self.crop != "faces":
            raise UserError(f"landmarks=FILE does not go with crop={self.crop}.", "Set crop=faces, too.")


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """Keys of `pggan import`, which converts the weights of another GAN program into a generator file of pggan."""

    source: str
    out: str


@dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """Keys of `pggan monitor`, which serves TensorBoard for a run."""

    run: str
    port: Port | None
    open: bool


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Keys of `pggan inspect`, which shows what a run, a checkpoint, a data set or a picture holds."""

    run: str
    data: str | None
    image: str | None
    json: bool
    sheet: str | None

    def __post_init__(self) -> None:
        if [self.run != NEWEST, self.data is not None, self.image is not None].count(True) > 1:
            raise UserError("`pggan inspect` takes only one of run=, data= and image=.", "Leave out the others.")


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """Keys of `pggan doctor`, which checks libraries and devices, and tries a few training steps."""

    device: str


@dataclass(frozen=True, kw_only=True)
class PlanConfig(TrainConfig):
    """Keys of `pggan plan`: the keys of a training run, and the keys of the cost estimate."""

    device: str | None
    calibrate: bool
    details: bool
    interconnect: str
    processes: list[Count] | None
    json: bool


@dataclass(frozen=True, kw_only=True)
class StagesConfig:
    """Keys that `pggan bench` and `pggan bench scaling` share."""

    stages: list[Resolution]
    batch: Batches
    steps: Count
    model: ModelConfig
    loss: WganGpConfig | R1Config
    precision: Precision
    threads: Count | None
    json: bool

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            require(value != [], key, value, "a list of at least one number")
        require(vars(self.loss).get("gamma") != "auto", "loss.gamma", "auto", "a number")

    def batches(self) -> list[tuple[int, int]]:
        """Pairs (resolution, batch size) to measure; raises UserError if a resolution has no batch size."""
        entries = per_resolution("batch", self.batch, min(self.stages))
        return [(side, int(value_at(entries, side))) for side in self.stages]


@dataclass(frozen=True, kw_only=True)
class BenchConfig(StagesConfig):
    """Keys of `pggan bench`, which measures the throughput of the training step."""

    against: bool
    device: str


@dataclass(frozen=True, kw_only=True)
class BenchScalingConfig(StagesConfig):
    """Keys of `pggan bench scaling`, which compares the speed of several ranks with the speed of one rank."""

    processes: list[Count]
    devices: Literal["auto", "cpu", "cuda"]
    elastic: bool
    gradients: PlainGradientsConfig | DgcConfig
    distributed: DistributedConfig
