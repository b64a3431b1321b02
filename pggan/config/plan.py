"""Keys of `pggan plan`: those of the run that is planned, and its own."""

from dataclasses import dataclass
from math import inf

from pggan.config.train import TrainConfig
from pggan.core.errors import UserError, nearest
from pggan.core.validation import require
from pggan.plan.links import LINKS


@dataclass(frozen=True, kw_only=True)
class PlanConfig(TrainConfig):
    """What a training run will take."""

    calibrate: bool
    steps: int
    limit_seconds: float
    tflops: float | None
    watts: float | None
    network: str
    processes: list[int]
    ratio: float
    json: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.steps >= 1, "steps", self.steps, "at least 1")
        require(0 < self.limit_seconds < inf, "limit_seconds", self.limit_seconds, "above 0")
        require(self.tflops is None or 0 < self.tflops < inf, "tflops", self.tflops, "above 0, or null")
        require(self.watts is None or 0 < self.watts < inf, "watts", self.watts, "above 0, or null")
        if self.calibrate and self.tflops is not None:
            raise UserError("calibrate=true measures the rate that tflops= states.", "Leave out one of them.")
        if self.network not in LINKS:
            raise UserError(f"There is no network '{self.network}'.", nearest(self.network, LINKS))
        counts = self.processes
        require(bool(counts) and min(counts) >= 1, "processes", counts, "numbers of at least 1, for example [1,8]")
        require(0 < self.ratio <= 1, "ratio", self.ratio, "more than 0 and at most 1")
