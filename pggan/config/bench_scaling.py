"""Keys of `pggan bench scaling`."""

from dataclasses import dataclass
from typing import Any

from pggan.config.compute import Precision
from pggan.config.distributed import WorkersConfig
from pggan.config.gradients import dgc_options
from pggan.config.model import ModelConfig
from pggan.config.notation import PerLevel, table
from pggan.core.architecture import SMALLEST_RESOLUTION, is_power_of_two
from pggan.core.schedule import table_at
from pggan.core.validation import require


@dataclass(frozen=True, kw_only=True)
class ScalingConfig:
    """Speed of several processes beside that of one."""

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
    workers: WorkersConfig
    trace: str | None
    json: bool
    out: str | None

    def __post_init__(self) -> None:
        require(self.steps >= 1, "steps", self.steps, "at least 1")
        require(self.warmup >= 1, "warmup", self.warmup, "at least 1")
        counts = bool(self.processes) and all(count >= 1 for count in self.processes)
        require(counts, "processes", self.processes, "numbers of processes, for example [1,2]")
        require(self.devices in ("auto", "cpu", "cuda"), "devices", self.devices, "auto, cpu or cuda")
        require(bool(self.stages), "stages", self.stages, "resolutions, for example [16,32]")
        dgc_options(self.gradients, elastic=self.elastic)
        for stage in self.stages:
            valid = stage >= SMALLEST_RESOLUTION and is_power_of_two(stage)
            require(valid, "stages", self.stages, "resolutions: powers of two from 4, for example [16,32]")
            self.model.require_whole_groups("batch", int(table_at(table("batch", self.batch, stage, least=1), stage)))
