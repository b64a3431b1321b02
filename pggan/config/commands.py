"""Keys of `pggan prepare`, `plan`, `bench`, `import`, `monitor`, `inspect` and `doctor`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pggan.config.parse import RawPerResolution, per_resolution
from pggan.config.train import (
    DgcConfig,
    DistributedConfig,
    ModelConfig,
    PlainGradientsConfig,
    R1Config,
    TrainConfig,
    WganGpConfig,
)
from pggan.config.validation import Count, Positive, Whole
from pggan.core.architecture import MIN_RESOLUTION, Precision, is_power_of_two
from pggan.core.errors import UserError, require
from pggan.core.schedule import value_at

PrepareCrop = StrEnum("PrepareCrop", "center resize pad face")  # as of training, and by landmarks of faces
OnBad = StrEnum("OnBad", "report stop")  # what to do about files that can't be used


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Images to a pyramid."""

    source: Any
    dest: str | None
    max_resolution: int | None
    crop: PrepareCrop
    keep: Annotated[float, ">0 <=1"]
    landmarks: str | None
    channels: int | None
    labels: bool | str
    on_bad: OnBad
    check: bool
    report: str | None
    num_workers: Count | None
    root: str
    split: str
    download: bool


@dataclass(frozen=True, kw_only=True)
class ImportConfig:
    """A generator of another program."""

    source: str
    out: str


@dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """TensorBoard on a run."""

    run: str | None
    host: str
    port: Annotated[int, ">=0 <=65535"] | None
    open: bool


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """A run or a dataset as a table."""

    run: str | None
    data: str | None
    json: bool
    sheet: str | None
    verify: bool

    def __post_init__(self) -> None:
        if (self.run is None) == (self.data is None):
            raise UserError("inspect looks at one thing at a time.", "Give run=DIRECTORY or data=DIRECTORY.")
        if self.run is not None and (self.sheet is not None or self.verify):
            problem = "sheet= and verify= are for a data set; a run's files are always verified."
            raise UserError(problem, "Give data=DIRECTORY; images of a run: pggan sample.")


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
    limit_seconds: Positive
    watts: Positive | None
    interconnect: str
    processes: list[Count]
    json: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.device is not None and self.calibrate:
            problem = "device= predicts a card that need not be here; calibrate=true measures here."
            raise UserError(problem, "Leave out one of them.")
        require(bool(self.processes), "processes", self.processes, "numbers of ranks, for example [1,8]")


@dataclass(frozen=True, kw_only=True)
class StagesConfig:
    """Keys of every benchmark of the training step: the resolutions that are measured, how often, and of what."""

    stages: list[int]
    batch: RawPerResolution
    steps: Count
    warmup: Whole
    model: ModelConfig
    loss: WganGpConfig | R1Config
    precision: Precision
    threads: Count | None
    json: bool

    def __post_init__(self) -> None:
        self.batches()

    def batches(self) -> list[tuple[int, int]]:
        """Every stage with its batch; raises UserError for what is no resolution or not made of whole groups."""
        valid = [side >= MIN_RESOLUTION and is_power_of_two(side) for side in self.stages]
        wanted = "resolutions: powers of two from 4, for example [4,8,16]"
        require(bool(self.stages) and all(valid), "stages", self.stages, wanted)
        entries = per_resolution("batch", self.batch, min(self.stages), least=1, whole=True)
        found = [(side, int(value_at(entries, side))) for side in self.stages]
        for _, batch in found:
            self.model.require_whole_groups("batch", batch)
        return found


@dataclass(frozen=True, kw_only=True)
class BenchConfig(StagesConfig):
    """Throughput of the training step."""

    against: bool
    device: str


@dataclass(frozen=True, kw_only=True)
class BenchScalingConfig(StagesConfig):
    """Speed of several ranks beside that of one."""

    warmup: Count
    processes: list[Count]
    devices: Literal["auto", "cpu", "cuda"]
    elastic: bool
    gradients: PlainGradientsConfig | DgcConfig
    distributed: DistributedConfig
    trace: str | None

    def __post_init__(self) -> None:
        require(bool(self.processes), "processes", self.processes, "numbers of ranks, for example [1,2]")
        super().__post_init__()
