"""Keys of all commands but `pggan train`: a dataclass each, with types and bounds; defaults are in the YAML files."""

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
from pggan.core.errors import UserError
from pggan.core.schedule import value_at

ALL = "all"  # as checkpoint=
Port = Annotated[int, ">=0 <=65535"]


# ---- a generator -------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class GeneratorConfig:
    """Keys of every command that takes a generator, or with checkpoint=all each of a run."""

    run: str
    checkpoint: int | Literal["newest", "best", "all"]  # the images that it was saved at, or a word

    @property
    def generator_keys(self) -> dict[str, Any]:
        """The keys that choose the generator, its stage and its class, as far as they are given."""
        values = {name: getattr(self, name, None) for name in ("run", "checkpoint", "resolution", "alpha", "label")}
        return {name: value for name, value in values.items() if value not in (None, "newest", ALL)}


@dataclass(frozen=True, kw_only=True)
class GeneratorStageConfig(GeneratorConfig):
    """Keys of every command that takes a stage of a generator."""

    resolution: int | None
    alpha: float | None


@dataclass(frozen=True, kw_only=True)
class DeviceConfig:
    """Where a command computes."""

    device: str
    threads: Count | None


@dataclass(frozen=True, kw_only=True)
class DrawConfig(GeneratorStageConfig, DeviceConfig):
    """Keys of every command that draws images: a generator, its stage and its class."""

    label: str | None


@dataclass(frozen=True, kw_only=True)
class PicturesConfig(DrawConfig):
    """Keys of the commands that draw images of seeds or of latents."""

    seeds: Any
    latents: Any
    truncation: float
    grid: str | None
    zoom: Count | None
    out: str | None


@dataclass(frozen=True, kw_only=True)
class SampleConfig(PicturesConfig):
    """Images of a generator."""

    direction: str | None
    strength: list[int | float]


@dataclass(frozen=True, kw_only=True)
class InterpolateConfig(PicturesConfig):
    """Images between latents."""

    path: Literal["slerp", "lerp", "loop", "walk"]
    frames: Annotated[int, ">=2"]
    fps: Count


@dataclass(frozen=True, kw_only=True)
class TimelapseConfig:
    """A film of a whole training."""

    run: str
    seconds: Positive
    fps: Count
    out: str | None


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(DrawConfig):
    """The latents of given images."""

    image: list[str]
    steps: Count
    out: str | None


@dataclass(frozen=True, kw_only=True)
class DirectionsConfig(DrawConfig):
    """Directions in the space of latents along which images change."""

    count: Count
    seeds: Any
    strength: Positive
    out: str | None


@dataclass(frozen=True, kw_only=True)
class ExploreConfig(GeneratorConfig, DeviceConfig):
    """A page in the browser."""

    directions: str | None
    port: Port | None
    open: bool


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(GeneratorStageConfig, DeviceConfig):
    """Images of a generator beside those of a data set."""

    data: str | None
    metrics: list[str]
    extractor: str
    count: Annotated[int, ">=2"] | None
    out: str | None
    json: bool


@dataclass(frozen=True, kw_only=True)
class ExportConfig(GeneratorStageConfig):
    """A generator for other programs."""

    format: Literal["safetensors", "onnx", "hf", "web"]
    out: str
    license: str | None
    data_statement: str | None
    directions: str | None
    runtime: str | None


# ---- images and runs ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Images to a pyramid."""

    source: str
    dest: str
    max_resolution: Resolution | None
    crop: Literal["center", "resize", "pad", "face"]
    landmarks: str | None
    channels: Channels | None
    labels: bool | str
    on_bad: Literal["report", "stop"]
    num_workers: Count | None

    def __post_init__(self) -> None:
        if (self.crop == "face") != (self.landmarks is not None):
            raise UserError("crop=face needs landmarks=FILE, and nothing else does.", "Give both, or neither.")


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """A generator of another program."""

    source: str
    out: str


@dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """TensorBoard on a run."""

    run: str | None
    port: Port | None
    open: bool


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """A run or a dataset as a table."""

    run: str | None
    data: str | None
    json: bool
    sheet: str | None

    def __post_init__(self) -> None:
        if (self.run is None) == (self.data is None):
            raise UserError("inspect looks at one thing at a time.", "Give run=DIRECTORY or data=DIRECTORY.")


# ---- speed -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """The device that is tried, and the form of the report."""

    device: str
    json: bool


@dataclass(frozen=True, kw_only=True)
class PlanConfig(TrainConfig):
    """The training run that is planned, and how its cost is estimated."""

    device: str | None
    calibrate: bool
    interconnect: str
    processes: list[Count]
    json: bool


@dataclass(frozen=True, kw_only=True)
class StagesConfig:
    """Keys of every benchmark of the training step: the resolutions that are measured, how often, and of what."""

    stages: list[Resolution]
    batch: Batches
    steps: Count
    model: ModelConfig
    loss: WganGpConfig | R1Config
    precision: Precision
    threads: Count | None
    json: bool

    def batches(self) -> list[tuple[int, int]]:
        """Every stage with its batch; raises UserError where the batches have no entry for one."""
        entries = per_resolution("batch", self.batch, min(self.stages, default=0))
        return [(side, int(value_at(entries, side))) for side in self.stages]


@dataclass(frozen=True, kw_only=True)
class BenchConfig(StagesConfig):
    """Throughput of the training step."""

    against: bool
    device: str


@dataclass(frozen=True, kw_only=True)
class BenchScalingConfig(StagesConfig):
    """Speed of several ranks beside that of one."""

    processes: list[Count]
    devices: Literal["auto", "cpu", "cuda"]
    elastic: bool
    gradients: PlainGradientsConfig | DgcConfig
    distributed: DistributedConfig
