"""Keys of `pggan plan`, `interpolate`, `inspect` and `doctor`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pggan.config.sampling import DrawConfig
from pggan.config.train import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import require, require_bounds

InterpolationPath = StrEnum("InterpolationPath", "slerp lerp loop walk")  # from one latent to the next


@dataclass(frozen=True, kw_only=True)
class PlanConfig(TrainConfig):
    """The training run that is planned, and how its cost is estimated."""

    device: str | None
    calibrate: bool
    steps: int
    limit_seconds: float
    tflops: float | None
    watts: float | None
    network: str
    processes: list[int]
    json: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bounds(self, steps=">=1", limit_seconds=">0", tflops=">0", watts=">0")
        if self.calibrate and self.tflops is not None:
            raise UserError("calibrate=true measures the rate that tflops= states.", "Leave out one of them.")
        if self.device is not None and (self.calibrate or self.tflops is not None):
            key, does = ("calibrate=true", "measures here") if self.calibrate else ("tflops=", "states a rate")
            raise UserError(f"device= predicts a card that need not be here; {key} {does}.", "Leave out one of them.")
        counts = self.processes
        require(bool(counts) and min(counts) >= 1, "processes", counts, "numbers of at least 1, for example [1,8]")


@dataclass(frozen=True, kw_only=True)
class InterpolateConfig(DrawConfig):
    """Images between latents."""

    seeds: Any
    truncation: float
    grid: str | None
    zoom: int
    out: str
    path: InterpolationPath
    frames: int
    fps: int
    smoothness: float

    def __post_init__(self) -> None:
        require_bounds(self, zoom=">=1", truncation="", frames=">=2", fps=">=1", smoothness=">=0")


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """A run or a dataset as a table."""

    run: str | None
    data: str | None
    json: bool
    sheet: str | None
    verify: bool


@dataclass(frozen=True, kw_only=True)
class DoctorConfig:
    """What this machine has, and what works on it."""

    device: str
    json: bool
