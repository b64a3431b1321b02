"""Keys of a training run: when it reports and saves, and all parts together."""

from dataclasses import dataclass
from math import inf
from typing import Any

from pggan.config.compute import ComputeConfig, Precision
from pggan.config.data import DataConfig
from pggan.config.distributed import WorkersConfig
from pggan.config.gradients import dgc_options
from pggan.config.model import AverageConfig, ModelConfig, OptimizerConfig, ScheduleConfig
from pggan.config.notation import parse_grid
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.core.validation import require
from pggan.losses import require_loss

PHASES = "phases"  # as checkpoint.milestones: the end of every phase


@dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """What is reported, and how often."""

    tick_images: int
    grid_images: int
    grid: str

    def __post_init__(self) -> None:
        require(self.tick_images >= 1, "monitor.tick_images", self.tick_images, "at least 1")
        require(self.grid_images >= 1, "monitor.grid_images", self.grid_images, "at least 1")
        parse_grid(self.grid, "monitor.grid")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """When the state is saved, how much of it is kept, and when training goes back to it."""

    every_images: int
    every_minutes: float | None
    keep: int
    milestones: Any
    roll_back_after: int

    def __post_init__(self) -> None:
        require(self.every_images >= 1, "checkpoint.every_images", self.every_images, "at least 1")
        minutes = self.every_minutes
        require(minutes is None or 0 < minutes < inf, "checkpoint.every_minutes", minutes, "above 0, or null")
        require(self.keep >= 1, "checkpoint.keep", self.keep, "at least 1")
        require(self.roll_back_after >= 1, "checkpoint.roll_back_after", self.roll_back_after, "at least 1")
        counts = self.milestones
        listed = isinstance(counts, list) and all(type(count) is int and count >= 1 for count in counts)
        wanted = "image counts, for example [100000,200000], or the word phases"
        require(listed or counts == PHASES, "checkpoint.milestones", counts, wanted)

    def is_milestone(self, schedule: Schedule, before: int, images: int) -> bool:
        """Whether the step from `before` to `images` reaches an image count whose checkpoint stays for good."""
        counts = [phase.end for phase in schedule.phases] if self.milestones == PHASES else self.milestones
        return any(before < count <= images for count in counts)


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Everything about one training run."""

    name: str
    run_dir: str | None
    resume: str
    allow_changes: list[str]
    init_from: str | None
    seed: int
    devices: str
    elastic: bool
    workers: WorkersConfig
    gradients: dict[str, Any]
    precision: Precision
    compute: ComputeConfig
    data: DataConfig
    model: ModelConfig
    schedule: ScheduleConfig
    loss: dict[str, Any]
    optimizer: OptimizerConfig
    average: AverageConfig
    monitor: MonitorConfig
    checkpoint: CheckpointConfig

    def __post_init__(self) -> None:
        if self.init_from is not None and self.resume not in ("auto", "never"):
            raise UserError(
                "init_from= begins a new run, resume= goes on with one.",
                "Leave out one of them: resume= restores everything, init_from= takes over the weights only.",
            )
        require_loss(str(self.loss.get("name")))
        dgc_options(self.gradients, elastic=self.elastic)
        self.compute.require_whole_groups(self.model.stddev_group)
        for phase in self.schedule.build().phases:
            self.model.require_whole_groups("schedule.batch", phase.batch)
