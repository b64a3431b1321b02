"""Keys of `pggan evaluate`."""

from dataclasses import dataclass
from typing import Any

from pggan.config.parse import require_checkpoint
from pggan.core.errors import UserError, nearest
from pggan.core.validation import require, require_bounds

METRICS = ("swd", "ms_ssim", "kid", "fid", "precision_recall", "neighbours", "duplicates")
EXTRACTORS = ("efficientnet-lite0", "inception", "pixels", "torchvision")  # before a colon, if there is one
WITH_WEIGHTS = ("inception", "torchvision")
ALL = "all"  # as checkpoint=


def require_metrics(key: str, metrics: list[str]) -> None:
    """Raise UserError unless `metrics`, the value of `key`, are names of metrics."""
    require(bool(metrics), key, metrics, "a list of at least one, for example [swd,kid]")
    for name in metrics:
        if name not in METRICS:
            raise UserError(f"{key} has '{name}', which is no metric.", nearest(name, METRICS))


def require_extractor(prefix: str, name: str, weights: str | None) -> None:
    """Raise UserError unless `name` can be an extractor, and takes `weights`.

    Args: prefix: of the keys in messages.
    """
    family, _, member = name.partition(":")
    if family not in EXTRACTORS and not member:
        problem = f"There is no {prefix}extractor={name}."
        raise UserError(problem, nearest(name, [*EXTRACTORS[:-1], "torchvision:NAME", "MODULE:FUNCTION"]))
    if family == "torchvision" and not member:
        raise UserError(
            f"{prefix}extractor={name} names no model.", "Write torchvision:NAME, as in torchvision:resnet50."
        )
    if family in EXTRACTORS and family != "torchvision" and member:
        raise UserError(f"There is no {prefix}extractor={name}: {family} is one extractor.", f"Write {family}.")
    if weights is not None and family not in WITH_WEIGHTS:
        raise UserError(f"{prefix}extractor={name} takes no {prefix}weights=.", "Leave it out, or choose another one.")


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
        require_extractor("", self.extractor, self.weights)
        require_checkpoint(self.checkpoint, ALL)
