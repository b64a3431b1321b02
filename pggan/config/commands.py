"""Keys of `pggan plan`, `interpolate`, `timelapse`, `monitor`, `inspect` and `doctor`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pggan.config.sampling import DrawConfig
from pggan.config.train import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import require, require_bounds

InterpolationPath = StrEnum("InterpolationPath", "slerp lerp loop walk")  # from one latent to the next
Enlargement = StrEnum("Enlargement", "nearest smooth")  # how images are enlarged
TimeAxis = StrEnum("TimeAxis", "images hours")  # what passes evenly in a film of a training


@dataclass(frozen=True, kw_only=True)
class PlanConfig(TrainConfig):
    """The training run that is planned, and how its cost is estimated."""

    device: str | None
    calibrate: bool
    steps: int
    limit_seconds: float
    tflops: float | None
    watts: float | None
    interconnect: str
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
        require(
            bool(counts) and min(counts) >= 1, "processes", counts, "numbers of ranks, at least 1, for example [1,8]"
        )


@dataclass(frozen=True, kw_only=True)
class InterpolateConfig(DrawConfig):
    """Images between latents."""

    seeds: Any
    latents: Any
    path: InterpolationPath
    frames: int
    fps: int
    smoothness: float
    constant_speed: bool | None
    hold: int
    ease: bool
    grow_from: int | None
    truncation: float
    grid: str | None
    zoom: int | None
    scaling: Enlargement
    out: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        bounds = {"frames": ">=2", "fps": ">=1", "smoothness": ">=0", "hold": ">=0", "zoom": ">=1", "truncation": ""}
        require_bounds(self, **bounds)
        if self.seeds is not None and self.latents is not None:
            raise UserError("seeds= and latents= both say where to pass.", "Leave out one of them.")
        of_keys = {"latents": self.latents, "hold": self.hold, "ease": self.ease}
        given = [key for key, value in of_keys.items() if value]
        if self.path is InterpolationPath.walk and given:
            raise UserError(f"path=walk passes through no images of {given[0]}=.", f"Leave out {given[0]}=.")


@dataclass(frozen=True, kw_only=True)
class TimelapseConfig:
    """A film of a whole training."""

    run: str
    axis: TimeAxis
    milestones: bool
    grid: str
    seconds: float
    fps: int
    zoom: int | None
    scaling: Enlargement
    out: str | None
    device: str
    threads: int | None

    def __post_init__(self) -> None:
        require_bounds(self, seconds=">0", fps=">=1", zoom=">=1", threads=">=1")


@dataclass(frozen=True, kw_only=True)
class MonitorConfig:
    """TensorBoard on a run."""

    run: str | None
    host: str
    port: int | None
    open: bool

    def __post_init__(self) -> None:
        require(self.port is None or 0 <= self.port < 2**16, "port", self.port, "from 0 to 65535")


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
    """Keys of `pggan doctor`: the device that is tried, and the form of the report."""

    device: str
    json: bool
