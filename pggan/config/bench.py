"""Keys of `pggan bench`."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from typing import Any

from pggan.config.compute import ComputeConfig, ConvolutionMethod, PenaltyPath, Precision, Switch
from pggan.config.model import ModelConfig, ScheduleConfig
from pggan.config.notation import PerLevel, table
from pggan.core.architecture import SMALLEST_RESOLUTION, is_power_of_two
from pggan.core.errors import UserError
from pggan.core.schedule import table_at
from pggan.core.validation import require

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
class BenchComputeConfig:
    """What all ways of calculating have in common."""

    micro_batch: int | None
    recompute: bool


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
    convolutions: list[str]
    penalties: list[str]
    against: bool
    device: str
    json: bool
    out: str | None
    compute: BenchComputeConfig
    model: ModelConfig
    schedule: ScheduleConfig
    loss: dict[str, Any]

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "at least 1")
        require(self.warmup >= 0, "warmup", self.warmup, "at least 0")
        self._require_some("precisions", self.precisions, (precision.value for precision in Precision))
        self._require_some("modes", self.modes, BENCH_MODES)
        self._require_some("convolutions", self.convolutions, (method.value for method in ConvolutionMethod))
        self._require_some("penalties", self.penalties, (path.value for path in PenaltyPath))
        stages = self.stages if isinstance(self.stages, list) else [self.stages]
        require(bool(stages), "stages", self.stages, "resolutions, for example [4,8,16]")
        for stage in stages:
            valid = isinstance(stage, int) and stage >= SMALLEST_RESOLUTION and is_power_of_two(stage)
            require(valid, "stages", self.stages, "resolutions: powers of two from 4, for example [4,8,16]")
            batches = self.schedule.batch if self.batch is None else self.batch
            batch = table_at(table("batch", batches, stage, least=1, whole=True), stage)
            self.model.require_whole_groups("batch", int(batch))
        self._require_compatible()
        for _, way in self.ways().values():
            way.require_whole_groups(self.model.stddev_group)

    def ways(self) -> dict[str, tuple[Precision, ComputeConfig]]:
        """Every way of calculating by its name: its precision, its mode, and what else was chosen."""
        return {
            " ".join([precision, mode, *(word for word in others if word != "auto")]): (
                Precision(precision),
                ComputeConfig(
                    convolution=ConvolutionMethod(others[0]),
                    penalty=PenaltyPath(others[1]),
                    micro_batch=self.compute.micro_batch,
                    recompute=self.compute.recompute,
                    compile="compiled" in mode,
                    cuda_graphs=Switch.on if "graph" in mode else Switch.off,
                ),
            )
            for precision, mode, *others in product(self.precisions, self.modes, self.convolutions, self.penalties)
        }

    def _require_some(self, key: str, chosen: list[str], known: Iterable[str]) -> None:
        words = list(known)
        require(bool(chosen) and set(chosen) <= set(words), key, chosen, f"some of {', '.join(words)}")

    def _require_compatible(self) -> None:
        compiled = [mode for mode in self.modes if "compiled" in mode]
        if compiled and PenaltyPath.autograd.value in self.penalties:
            raise UserError(
                f"modes={compiled} can't differentiate a compiled pass twice (penalties={self.penalties}).",
                "Measure compiled modes with penalties=[auto] or [tangent], and autograd in a run of its own.",
            )
        if self.compute.recompute and (compiled or PenaltyPath.tangent.value in self.penalties):
            raise UserError(
                "compute.recompute=true works with penalties=[autograd] or [auto] and without compiled modes.",
                "Leave out the others.",
            )
