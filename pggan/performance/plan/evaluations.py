"""The time that the evaluations of a run take, from the budget and the cost that training gives them."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch

from pggan.config import DataConfig, TrainConfig
from pggan.core.devices import choose_device, count_devices
from pggan.metrics.evaluate import needs_extractor
from pggan.metrics.extractors import load_extractor
from pggan.performance.plan.calibration import PREDICTED, Timing
from pggan.performance.plan.phases import PhaseCost
from pggan.performance.recipe.data_facts import facts_of
from pggan.run.evaluation import KEYS
from pggan.run.evaluation_cost import MAX_POINTS, EvaluationCost, evaluation_cost, time_features


def evaluation_seconds(config: TrainConfig, costs: Sequence[PhaseCost], timings: Sequence[Timing]) -> float:
    """About the seconds of all evaluations, by the cost with which training plans its first ones."""
    chosen, schedule = config.evaluation, config.schedule.build()
    every = chosen.interval_images or max(schedule.total // MAX_POINTS, 1)
    each = {cost.phase: timing.seconds / cost.phase.batch for cost, timing in zip(costs, timings, strict=True)}
    total = _cost(config, timings).seconds_of_run(each, schedule.total, every)
    if chosen.interval_images is not None:
        return total
    return min(total, _updating(costs, timings) * chosen.max_share / (1 - chosen.max_share))


def evaluation_share(config: TrainConfig, costs: Sequence[PhaseCost], timings: Sequence[Timing]) -> str:
    """The share of the evaluations in the time, in words; at an interval, that of `costs` and their `timings`."""
    chosen = config.evaluation
    if not chosen.metrics:
        return "evaluations (none)"
    if chosen.interval_images is None:
        return f"evaluations (at most {chosen.max_share:.0%} of the time)"
    every = f"every {chosen.interval_images:,} images"
    seconds = evaluation_seconds(config, costs, timings)
    share = seconds / (seconds + _updating(costs, timings))
    more = ", and more for features" if needs_extractor(chosen.metrics) and _is_elsewhere(timings) else ""
    return f"evaluations ({every}, about {share:.0%} of the time{more})"


def _updating(costs: Sequence[PhaseCost], timings: Sequence[Timing]) -> float:
    """The seconds of all steps."""
    return sum(cost.steps * timing.seconds for cost, timing in zip(costs, timings, strict=True))


def _is_elsewhere(timings: Sequence[Timing]) -> bool:
    """Whether the run is planned for a card on which nothing can be timed."""
    return any(timing.source == PREDICTED for timing in timings)


def _cost(config: TrainConfig, timings: Sequence[Timing]) -> EvaluationCost:
    """The cost of one evaluation; without features where they can't be timed."""
    chosen, features, ranks = config.evaluation, 0.0, 1
    if not _is_elsewhere(timings):
        kind, ranks = count_devices(config.devices)
        if needs_extractor(chosen.metrics):
            side = config.schedule.final_resolution
            features = _feature_seconds(chosen.extractor, chosen.weights, choose_device(kind), side)
        ranks *= config.distributed.nnodes
    images, mirror = _images(config.data, chosen.count), config.data.mirror
    return evaluation_cost(chosen, images, features, ranks=ranks, mirror=mirror)


@cache
def _feature_seconds(extractor: str, weights: str | None, device: torch.device, resolution: int) -> float:
    return time_features(load_extractor(extractor, weights, device, KEYS), resolution, device)


def _images(config: DataConfig, unknown: int) -> int:
    """The number of images of the data; `unknown` where they are not here yet."""
    return facts_of(config).images if config.path is None or Path(config.path).exists() else unknown
