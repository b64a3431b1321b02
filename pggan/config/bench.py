"""Keys of `pggan bench` and `pggan bench scaling`."""

from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import product
from typing import Any

from pggan.config.compute import ComputeConfig, Precision, Switch
from pggan.config.distributed import DistributedConfig, dgc_options
from pggan.config.model import ModelConfig
from pggan.config.parse import RawPerResolution, per_resolution
from pggan.config.schedule import ScheduleConfig
from pggan.config.train import TrainerConfig
from pggan.core.architecture import MIN_RESOLUTION, is_power_of_two
from pggan.core.errors import UserError
from pggan.core.schedule import value_at
from pggan.core.validation import require, require_bounds

BenchMode = StrEnum("BenchMode", "eager graph")


@dataclass(frozen=True, kw_only=True)
class StagesConfig:
    """Keys of every benchmark of the training step: the resolutions that are measured, how often, and of what."""

    stages: Any
    batch: RawPerResolution
    steps: int
    warmup: int
    model: ModelConfig
    loss: dict[str, Any]
    threads: int | None
    json: bool
    out: str | None

    def batches(self) -> list[tuple[int, int]]:
        """Every stage with its batch; raises UserError for what is no resolution or not made of whole groups."""
        stages = self.stages if isinstance(self.stages, list) else [self.stages]
        valid = [isinstance(side, int) and side >= MIN_RESOLUTION and is_power_of_two(side) for side in stages]
        wanted = "resolutions: powers of two from 4, for example [4,8,16]"
        require(bool(stages) and all(valid), "stages", self.stages, wanted)
        entries = per_resolution("batch", self.batch, min(stages), least=1, whole=True)
        found = [(side, int(value_at(entries, side))) for side in stages]
        for _, batch in found:
            self.model.require_whole_groups("batch", batch)
        return found


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
    """Keys of computing that hold for all variants of the step."""

    micro_batch_size: int | None


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
        require_bounds(self, steps=">=1", warmup=">=0")
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
            compute = ComputeConfig(micro_batch_size=self.compute.micro_batch_size, cuda_graphs=graphs)
            found[f"{precision} {mode}"] = TrainerConfig(
                model=self.model, loss=self.loss, precision=precision, compute=compute
            )
        return found


@dataclass(frozen=True, kw_only=True)
class BenchScalingConfig(StagesConfig):
    """Speed of several ranks beside that of one."""

    processes: list[int]
    devices: str
    precision: Precision
    elastic: bool
    gradients: dict[str, Any]
    distributed: DistributedConfig
    trace: str | None

    def __post_init__(self) -> None:
        require_bounds(self, steps=">=1", warmup=">=1")
        counts = bool(self.processes) and all(count >= 1 for count in self.processes)
        require(counts, "processes", self.processes, "numbers of ranks, for example [1,2]")
        require(self.devices in ("auto", "cpu", "cuda"), "devices", self.devices, "auto, cpu or cuda")
        dgc_options(self.gradients, elastic=self.elastic)
        self.batches()
