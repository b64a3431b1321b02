"""Keys of `pggan plan`: those of the run that is planned, and its own."""

from dataclasses import dataclass

from pggan.config.train import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import require, require_bounds


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
    json: bool

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bounds(self, steps=">=1", limit_seconds=">0", tflops=">0", watts=">0")
        if self.calibrate and self.tflops is not None:
            raise UserError("calibrate=true measures the rate that tflops= states.", "Leave out one of them.")
        counts = self.processes
        require(bool(counts) and min(counts) >= 1, "processes", counts, "numbers of at least 1, for example [1,8]")
