"""Keys of `pggan prepare`, `plan`, `bench`, `import`, `monitor`, `inspect` and `doctor`."""

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Annotated, Any, Literal

from pggan.config.files import default_trainer
from pggan.config.parse import RawPerResolution, per_resolution
from pggan.config.train import (
    DgcConfig,
    DistributedConfig,
    ModelConfig,
    PlainGradientsConfig,
    Precision,
    R1Config,
    ScheduleConfig,
    Switch,
    TrainConfig,
    TrainerConfig,
    WganGpConfig,
)
from pggan.core.architecture import MIN_RESOLUTION, is_power_of_two
from pggan.core.errors import UserError
from pggan.core.schedule import value_at
from pggan.core.validation import Count, Positive, Whole, require

BenchMode = StrEnum("BenchMode", "eager graph")
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
    steps: Count
    limit_seconds: Positive
    tflops: Positive | None
    watts: Positive | None
    interconnect: str
    processes: list[Count]
    json: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.calibrate and self.tflops is not None:
            raise UserError("calibrate=true measures the rate that tflops= states.", "Leave out one of them.")
        if self.device is not None and (self.calibrate or self.tflops is not None):
            key, does = ("calibrate=true", "measures here") if self.calibrate else ("tflops=", "states a rate")
            raise UserError(f"device= predicts a card that need not be here; {key} {does}.", "Leave out one of them.")
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
    threads: Count | None
    json: bool
    out: str | None

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
class BenchDataConfig:
    """Throughput of loading."""

    path: str | None
    batches: Count
    device_budget_mib: Whole | None


@dataclass(frozen=True, kw_only=True)
class BenchComputeConfig:
    """Keys of computing that hold for all variants of the step."""

    micro_batch_size: Count | None


@dataclass(frozen=True, kw_only=True)
class BenchConfig(StagesConfig):
    """Throughput of the training step, or of loading beside it."""

    data: BenchDataConfig
    precisions: list[Precision]
    modes: list[BenchMode]
    against: bool
    device: str
    compute: BenchComputeConfig
    schedule: ScheduleConfig

    def __post_init__(self) -> None:
        for key in ("precisions", "modes"):
            require(bool(getattr(self, key)), key, "[]", "a list of at least one; --help shows its values")
        if self.against and (layers := self.model.layers_beyond_paper):
            problem = f"against=true: the reference step has the paper's networks, without model.{layers[0]}."
            raise UserError(problem, "Leave out one of them.")
        self.batches()
        self.variants()

    def batches(self) -> list[tuple[int, int]]:
        return super().batches() if self.batch is not None else replace(self, batch=self.schedule.batch).batches()

    def variants(self) -> dict[str, TrainerConfig]:
        """Every combination of precision and mode by its name."""
        found = {}
        for precision, mode in product(self.precisions, self.modes):
            graphs = Switch.on if mode is BenchMode.graph else Switch.off
            size, trainer = self.compute.micro_batch_size, default_trainer()
            compute = replace(trainer.compute, micro_batch_size=size, cuda_graphs=graphs)
            found[f"{precision} {mode}"] = replace(
                trainer, model=self.model, loss=self.loss, precision=precision, compute=compute
            )
        return found


@dataclass(frozen=True, kw_only=True)
class BenchScalingConfig(StagesConfig):
    """Speed of several ranks beside that of one."""

    warmup: Count
    processes: list[Count]
    devices: Literal["auto", "cpu", "cuda"]
    precision: Precision
    elastic: bool
    gradients: PlainGradientsConfig | DgcConfig
    distributed: DistributedConfig
    trace: str | None

    def __post_init__(self) -> None:
        require(bool(self.processes), "processes", self.processes, "numbers of ranks, for example [1,2]")
        self.batches()
