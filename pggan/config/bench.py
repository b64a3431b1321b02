"""Keys of `pggan bench` and `pggan bench scaling`."""

from dataclasses import dataclass
from itertools import product
from typing import Any

from pggan.config.compute import ComputeConfig, ConvolutionMethod, PenaltyPath, Precision, Switch
from pggan.config.distributed import DistributedConfig
from pggan.config.gradients import dgc_options
from pggan.config.model import ModelConfig
from pggan.config.notation import PerLevel, table
from pggan.config.schedule import ScheduleConfig
from pggan.core.architecture import SMALLEST_RESOLUTION, is_power_of_two
from pggan.core.errors import UserError
from pggan.core.schedule import table_at
from pggan.core.validation import require, require_bounds

BENCH_MODES = ("eager", "compiled", "graph", "compiled_graph")


def require_stages(stages: Any, batch: PerLevel, model: ModelConfig) -> None:
    """Raise UserError unless `stages` are resolutions whose `batch` divides into groups for minibatch stddev."""
    wanted = "resolutions: powers of two from 4, for example [4,8,16]"
    listed = stages if isinstance(stages, list) else [stages]
    require(bool(listed), "stages", stages, wanted)
    for stage in listed:
        valid = isinstance(stage, int) and stage >= SMALLEST_RESOLUTION and is_power_of_two(stage)
        require(valid, "stages", stages, wanted)
        model.require_whole_groups("batch", int(table_at(table("batch", batch, stage, least=1, whole=True), stage)))


@dataclass(frozen=True, kw_only=True)
class BenchDataConfig:
    """Throughput of loading."""

    path: str | None
    batches: int
    device_budget_mib: int | None

    def __post_init__(self) -> None:
        require_bounds(self, "data.", batches=">=1", device_budget_mib=">=0")


@dataclass(frozen=True, kw_only=True)
class BenchComputeConfig:
    """What all variants of the step have in common."""

    micro_batch_size: int | None
    activation_checkpointing: bool


@dataclass(frozen=True, kw_only=True)
class BenchConfig:
    """Throughput of the training step, or of loading beside it."""

    data: BenchDataConfig
    stages: Any
    batch: PerLevel
    steps: int
    warmup: int
    precisions: list[Precision]
    modes: list[str]
    convolutions: list[ConvolutionMethod]
    penalties: list[PenaltyPath]
    against: bool
    device: str
    json: bool
    out: str | None
    compute: BenchComputeConfig
    model: ModelConfig
    schedule: ScheduleConfig
    loss: dict[str, Any]

    def __post_init__(self) -> None:
        require_bounds(self, steps=">=1", warmup=">=0")
        known = bool(self.modes) and set(self.modes) <= set(BENCH_MODES)
        require(known, "modes", self.modes, f"some of {', '.join(BENCH_MODES)}")
        for key in ("precisions", "convolutions", "penalties"):
            require(bool(getattr(self, key)), key, "[]", "a list of at least one; --help shows its values")
        require_stages(self.stages, self.schedule.batch if self.batch is None else self.batch, self.model)
        for _, compute in self.variants().values():
            compute.require_whole_groups(self.model.stddev_group)

    def variants(self) -> dict[str, tuple[Precision, ComputeConfig]]:
        """Every combination of precision, mode, convolution and penalty by its name; raises UserError for bad ones."""
        found = {}
        combinations = product(self.precisions, self.modes, self.convolutions, self.penalties)
        for precision, mode, convolution, penalty in combinations:
            others = (choice for choice in (convolution.value, penalty.value) if choice != "auto")
            name = " ".join([precision.value, mode, *others])
            try:
                compute = ComputeConfig(
                    **vars(self.compute),
                    convolution=convolution,
                    penalty=penalty,
                    compile="compiled" in mode,
                    cuda_graphs=Switch.on if "graph" in mode else Switch.off,
                )
            except UserError as error:
                remedy = "Leave out one of them; what can't be combined can be measured in runs of their own."
                raise UserError(f"There is no variant '{name}'. {error.problem}", remedy) from error
            found[name] = precision, compute
        return found


@dataclass(frozen=True, kw_only=True)
class BenchScalingConfig:
    """Speed of several ranks beside that of one."""

    processes: list[int]
    devices: str
    stages: list[int]
    batch: PerLevel
    steps: int
    warmup: int
    precision: Precision
    elastic: bool
    gradients: dict[str, Any]
    model: ModelConfig
    loss: dict[str, Any]
    distributed: DistributedConfig
    trace: str | None
    json: bool
    out: str | None

    def __post_init__(self) -> None:
        require_bounds(self, steps=">=1", warmup=">=1")
        counts = bool(self.processes) and all(count >= 1 for count in self.processes)
        require(counts, "processes", self.processes, "numbers of ranks, for example [1,2]")
        require(self.devices in ("auto", "cpu", "cuda"), "devices", self.devices, "auto, cpu or cuda")
        dgc_options(self.gradients, elastic=self.elastic)
        require_stages(self.stages, self.batch, self.model)
