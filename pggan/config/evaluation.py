"""Keys of the evaluations during training."""

from dataclasses import dataclass

from pggan.config.evaluate import require_extractor, require_metrics
from pggan.core.validation import require, require_bounds

AUTO = "auto"  # as evaluation.best: the first of the metrics that has an order
# Metrics by which generators are put in order, and their numbers of which the lowest is the best.
ORDERED = {"swd": "swd/mean", "kid": "kid", "fid": "fid"}


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig:
    """Metrics of the averaged generator during training."""

    metrics: list[str]
    extractor: str
    weights: str | None
    count: int
    interval_images: int | None
    max_share: float
    best: str | None

    def __post_init__(self) -> None:
        require_bounds(self, "evaluation.", count=">=2", interval_images=">=1", max_share=">0 <1")
        if self.metrics:
            require_metrics("evaluation.metrics", self.metrics)
        require_extractor("evaluation.", self.extractor, self.weights)
        ordered = [name for name in self.metrics if name in ORDERED]
        wanted = f"{AUTO}, null" + "".join(f" or {name}" for name in ordered)
        wanted += f": one of {', '.join(ORDERED)} that evaluation.metrics names, too"
        require(self.best in (None, AUTO, *ordered), "evaluation.best", self.best, wanted)

    @property
    def best_metric(self) -> str | None:
        """The number that decides which checkpoint is the best; None where none does."""
        ordered = [name for name in self.metrics if name in ORDERED]
        name = next(iter(ordered), None) if self.best == AUTO else self.best
        return None if name is None else ORDERED[name]

    @property
    def share(self) -> float:
        """The share of the time that is kept for evaluations, 0 to 1: 0 where none come, or at an interval."""
        return self.max_share if self.metrics and self.interval_images is None else 0.0
