"""Keys of `pggan evaluate`."""

from dataclasses import dataclass
from typing import Any

from pggan.config.parse import require_checkpoint
from pggan.core.errors import UserError, nearest
from pggan.core.validation import require, require_bounds

METRICS = ("swd", "ms_ssim", "kid", "fid", "precision_recall", "neighbours", "duplicates")
ALL = "all"  # as checkpoint=


def require_metrics(key: str, metrics: list[str]) -> None:
    """Raise UserError unless `metrics`, the value of `key`, are names of metrics."""
    require(bool(metrics), key, metrics, "a list of at least one, for example [swd,kid]")
    for name in metrics:
        if name not in METRICS:
            raise UserError(f"{key} has '{name}', which is no metric.", nearest(name, METRICS))


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Images of a generator beside those of a data set."""

    run: str
    checkpoint: Any
    data: str | None
    metrics: list[str]
    extractor: str
    weights: str | None
    count: int | None
    seed: int
    resolution: int | None
    alpha: float | None
    out: str | None
    json: bool
    devices: str
    threads: int | None

    def __post_init__(self) -> None:
        require_bounds(self, count=">=2", seed=">=0", threads=">=1")
        require_metrics("metrics", self.metrics)
        require_checkpoint(self.checkpoint, ALL)
