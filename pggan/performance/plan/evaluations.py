"""The time that the evaluations of a run take, from the budget and the cost that training gives them."""

from collections.abc import Sequence

from pggan.config import TrainConfig
from pggan.core.intervals import multiples_between
from pggan.metrics.evaluate import METRIC_CLASSES
from pggan.performance.plan.calibration import Timing
from pggan.performance.plan.phases import PhaseCost
from pggan.run.evaluation import MAX_POINTS


def evaluation_seconds(config: TrainConfig, costs: Sequence[PhaseCost], timings: Sequence[Timing]) -> float:
    """About the seconds of all evaluations: an image of one is expected to take as long as one of training."""
    chosen, schedule = config.evaluation, config.schedule.build()
    every = chosen.interval_images or max(schedule.total // MAX_POINTS, 1)
    total = 0.0
    for cost, timing in zip(costs, timings, strict=True):
        phase, end = cost.phase, min(cost.phase.end, schedule.total)
        if not all(METRIC_CLASSES[name].undefined(phase.resolution) for name in chosen.metrics):
            total += multiples_between(every, phase.start, end) * chosen.count * timing.seconds / phase.batch
    if chosen.interval_images is not None:
        return total
    updating = sum(cost.steps * timing.seconds for cost, timing in zip(costs, timings, strict=True))
    return min(total, updating * chosen.max_share / (1 - chosen.max_share))


def evaluation_share(config: TrainConfig) -> str:
    """The share of the evaluations in the time, in words."""
    chosen = config.evaluation
    if not chosen.metrics:
        return "evaluations (none)"
    if chosen.interval_images is not None:
        return f"evaluations (every {chosen.interval_images:,} images, at whatever share of the time)"
    return f"evaluations (at most {chosen.max_share:.0%} of the time)"
