"""Evaluations during training: when one is due, what it finds, and whether its checkpoint is the best so far.

An evaluation draws no random number of training and changes nothing of its state.  Points in time come from the clock
of rank 0, so two runs may be evaluated at other points; the numbers at a point do not differ.
"""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pggan.checkpoints.read import BEST, best_of, checkpoints_of, mark_of
from pggan.config.train import EvaluationConfig
from pggan.core.errors import UserError
from pggan.core.schedule import Phase, is_due
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup, RemoteUserError
from pggan.metrics import Evaluator, summary
from pggan.networks.networks import Generator
from pggan.run.report import NullReporter, Reporter
from pggan.sampling.generate import RenderSettings

MAX_POINTS = 100  # of a whole run, unless an interval is given: enough for a curve
FIRST_SEED = 10_000  # of the fakes, as `pggan evaluate` has it: its numbers are the same


def open_metrics(config: EvaluationConfig, device: torch.device) -> Evaluator:
    """The metrics of a run; raises UserError for what they lack."""
    return Evaluator(config.metrics, config.extractor, device, count=config.count, prefix="evaluation.")


def is_better(mark: dict[str, Any], best: Any) -> bool:
    """Whether the number that marks a checkpoint is better than the best: grown further, or the lower of one metric."""
    if not isinstance(best, dict) or best.keys() != mark.keys():  # there is none
        return True
    reached, before = ((one["resolution"], not one["fading"]) for one in (mark, best))
    lower = bool(mark["metric"] != best["metric"] or mark["value"] < best["value"])
    return bool(reached > before or (reached == before and lower))


@dataclass
class EvaluationBudget:
    """Whether an evaluation fits into its share of the training time, by what the last one took: the first one always.

    They are evenly spread, with room for one at the end.  Times are in seconds, by one clock.
    """

    share: float  # of the time, 0 to 1
    began: float
    ended: float
    spent: float = 0.0  # in all evaluations
    took: float = 0.0  # of the last one

    def allows(self, now: float, *, last: bool) -> bool:
        """Whether there is time for an evaluation; `last`: this is the end of the run."""
        evaluations = 1 if last else 2  # this one, and one at the end
        fits = self.spent + evaluations * self.took <= self.share * (now - self.began)
        return fits and (last or self.took <= self.share * (now - self.ended))

    def note(self, took: float, now: float) -> None:
        """Count an evaluation of so many seconds, which ends now."""
        self.spent, self.took, self.ended = self.spent + took, took, now


@dataclass
class TrainingEvaluator:
    """The evaluations of one run, on one of its ranks; all ranks call it at the same steps."""

    evaluator: Evaluator
    pyramid: ImagePyramid
    group: ProcessGroup
    reporter: Reporter | NullReporter
    run_dir: Path
    interval_images: int | None  # between two evaluations; None: as often as `share` of the time allows
    share: float
    mirror: bool
    images: int  # shown so far

    def __post_init__(self) -> None:
        now, metrics = time.monotonic(), self.evaluator.metrics
        self.budget = EvaluationBudget(self.share, now, now)
        for name, metric in [*metrics.items()]:
            if self.pyramid.images < metric.least_images:  # a run on a few images trains without it
                reason = f"it needs at least {metric.least_images} images, and the data has {self.pyramid.images}"
                self.reporter.line(f"{name} is left out: {reason}.")
                del metrics[name]
        self.decides = next((metric.decides for metric in metrics.values() if metric.decides), None)
        self._evaluated_at = self._ticked_at = self.images
        kept = [directory for directory in checkpoints_of(self.run_dir) if int(directory.name) <= self.images]
        best = best_of(kept) if self.group.is_main else None
        self._best = self.group.broadcast_object(None if best is None else mark_of(best, BEST))
        self.mark: dict[str, Any] | None = None  # of the checkpoint to be saved now, where it is the best

    def is_due(self, before: int, images: int) -> bool:
        """Whether the step from `before` to `images` is followed by a tick with an evaluation, as the interval says."""
        every = self.interval_images
        return every is not None and bool(self.evaluator.metrics) and is_due(every, before, images)

    def at_tick(self, g_ema: Generator, phase: Phase, images: int, total: int) -> dict[str, float]:
        """The numbers of an evaluation, by tag, if one is due at this tick of a run of `total` images; on all ranks."""
        metrics = self.evaluator.metrics.values()
        if all(phase.resolution < one.least_resolution for one in metrics) or not self._is_time(images, total):
            return {}
        began, is_first = time.monotonic(), not self.budget.spent
        try:
            settings = RenderSettings(phase.resolution, phase.alpha)
            found = self.evaluator.evaluate(
                g_ema, settings, self.pyramid, first_seed=FIRST_SEED, group=self.group, mirror=self.mirror
            )
        except (UserError, RemoteUserError, torch.OutOfMemoryError) as error:  # nothing to end a training for
            if isinstance(error, torch.OutOfMemoryError) and self.group.world_size > 1:
                raise  # the other ranks are in the middle of it
            self.reporter.line(f"No evaluation at {images:,} images: {error}")
            return {}
        finally:
            self._evaluated_at = images
            ended = time.monotonic()
            self.budget.note(ended - began, ended)
        for note in found.notes if is_first else ():
            self.reporter.line(note)
        for name, picture in found.pictures.items():
            self.reporter.picture(f"images/{name}", picture, self.run_dir / "samples" / f"{name}.png", images)
        self._mark_best(found.values, phase)
        return {f"metrics/{name}": value for name, value in found.values.items()}

    def _is_time(self, images: int, total: int) -> bool:
        """Whether this tick has an evaluation, the same on all ranks."""
        last, before, self._ticked_at = images >= total, self._ticked_at, images
        if self.interval_images is not None:
            return last or self.is_due(before, images)
        if not last and images - self._evaluated_at < total / MAX_POINTS:
            return False
        return bool(self.group.broadcast_object(self.budget.allows(time.monotonic(), last=last)))

    def _mark_best(self, values: dict[str, float], phase: Phase) -> None:
        """Report the values, and mark the checkpoint of this step if it is the best so far."""
        name = next((name for name in values if name.startswith(f"{self.decides}@")), None)
        if name is not None and math.isfinite(values[name]):
            mark = {"metric": name, "value": values[name], "resolution": phase.resolution, "fading": phase.alpha < 1}
            if is_better(mark, self._best):
                self._best = self.mark = mark
        best = "; the best so far" * (self.mark is not None)
        self.reporter.line(f"Evaluation: {', '.join(summary(values))}{best}")
