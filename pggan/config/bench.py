"""Keys of `pggan bench`."""

from dataclasses import dataclass
from typing import Any

from pggan.architecture import SMALLEST_RESOLUTION, is_power_of_two
from pggan.config.compute import ComputeConfig, Precision
from pggan.config.method import ModelConfig, ScheduleConfig
from pggan.schedule import table_at
from pggan.schema import require
from pggan.values import PerLevel, table

BENCH_MODES = ("eager", "compiled", "graph", "compiled_graph")


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
