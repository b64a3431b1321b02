"""Keys of a training run: what the trainer is made of, when it reports and saves, and all parts together."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pggan.augmentation import require_augmentation
from pggan.config.compute import ComputeConfig, Precision
from pggan.config.data import DataConfig
from pggan.config.distributed import DistributedConfig, dgc_options
from pggan.config.evaluation import EvaluationConfig
from pggan.config.model import EmaConfig, ModelConfig, OptimizerConfig
from pggan.config.parse import parse_grid
from pggan.config.schedule import ScheduleConfig
from pggan.core.errors import UserError
from pggan.core.schedule import Schedule
from pggan.core.validation import require, require_bounds
from pggan.losses import AUTO, MIN_GAMMA, gamma_by_rule, require_loss

ConsoleMode = StrEnum("ConsoleMode", "auto plain quiet verbose")  # what is printed

RESUME_KEYS = {"run_dir", "resume", "devices", "threads"}  # say where and how a run resumes, not what it is
PHASES = "phases"  # as checkpoint.milestones: the end of every phase


@dataclass(frozen=True, kw_only=True)
class ReportConfig:
    """Numbers and preview grids."""

    tick_images: int
    grid_images: int
    grid: str
    console: ConsoleMode
    profile_steps: int

    def __post_init__(self) -> None:
        require_bounds(self, "monitor.", tick_images=">=1", grid_images=">=1", profile_steps=">=0")
        parse_grid(self.grid, "monitor.grid")


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig:
    """Keys of checkpoints: when they are written, which are kept, and when training rolls back to one."""

    every_images: int
    every_minutes: float | None
    keep: int
    milestones: Any
    roll_back_after: int

    def __post_init__(self) -> None:
        require_bounds(self, "checkpoint.", every_images=">=1", every_minutes=">0", keep=">=1", roll_back_after=">=1")
        counts = self.milestones
        listed = isinstance(counts, list) and all(type(count) is int and count >= 1 for count in counts)
        wanted = "image counts, for example [100000,200000], or the word phases"
        require(listed or counts == PHASES, "checkpoint.milestones", counts, wanted)

    def milestone_images(self, schedule: Schedule) -> list[int]:
        """The image counts whose checkpoints are kept for good."""
        return [phase.end for phase in schedule.phases] if self.milestones == PHASES else list(self.milestones)


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """Keys of a trainer, besides those of the images.  The defaults are those of configs/train.yaml."""

    model: ModelConfig
    loss: dict[str, Any]
    augmentation: dict[str, Any] = field(default_factory=lambda: {"name": "none"})
    precision: Precision = Precision.auto
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    seed: int = 0
    threads: int | None = None
    elastic: bool = False
    distributed: DistributedConfig = field(default_factory=DistributedConfig)
    gradients: dict[str, Any] = field(default_factory=lambda: {"name": "fp32"})

    def __post_init__(self) -> None:
        require_bounds(self, threads=">=1")
        require_loss(str(self.loss.get("name")))
        require_augmentation(str(self.augmentation.get("name")))
        dgc_options(self.gradients, elastic=self.elastic)
        size, group = self.compute.micro_batch_size, self.model.stddev_group
        if size is not None and size % group:
            problem = f"compute.micro_batch_size={size} does not divide into groups of model.stddev_group={group}."
            raise UserError(problem, f"Use {max(size // group, 1) * group}.")


@dataclass(frozen=True, kw_only=True)
class TrainConfig(TrainerConfig):
    """A training run."""

    name: str
    run_dir: str | None
    hours: float | None
    resume: str
    allow_changes: list[str]
    init_from: str | None
    devices: str
    data: DataConfig
    schedule: ScheduleConfig
    ema: EmaConfig
    monitor: ReportConfig
    evaluation: EvaluationConfig
    checkpoint: CheckpointConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bounds(self, hours=">0")
        if self.init_from is not None and self.resume not in ("auto", "never"):
            problem = "init_from= begins a new run; resume= continues one."
            remedy = "Leave out one of them: resume= restores everything, init_from= takes over the weights only."
            raise UserError(problem, remedy)
        phases = self.schedule.build().phases
        for phase in phases:
            self.model.require_whole_groups("schedule.batch", phase.batch)
        if self.loss.get("gamma") == AUTO:
            gamma = max(gamma_by_rule(phases[-1].resolution, phases[-1].batch), MIN_GAMMA)
            # Every report and checkpoint names this number.
            object.__setattr__(self, "loss", {**self.loss, "gamma": float(f"{gamma:.2g}")})
