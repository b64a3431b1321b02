"""Evaluates the averaged generator (EMA) during training; this does not change the random numbers of training."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pggan.checkpoints.read import BEST, best_of, checkpoints_of, mark_of
from pggan.core.errors import StepFailed, UserError
from pggan.core.quality import in_words
from pggan.core.schedule import Phase, is_due
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup, RemoteUserError
from pggan.metrics import Evaluator, images_compared
from pggan.networks.networks import Generator
from pggan.run.report import NullReporter, Reporter
from pggan.sampling.generate import RenderSettings

MAX_POINTS = 100  # without evaluation.interval_images, a run has at most 100 evaluations, enough for a curve


def is_better(mark: dict[str, Any], best: Any) -> bool:
    """Whether result `mark` replaces `best`: another metric, a later phase, or a lower value in the same phase."""
    if best is None or best["metric"] != mark["metric"]:
        return True
    this, other = ((-one["resolution"], one["fading"], one["value"]) for one in (mark, best))
    return this < other


@dataclass
class TrainingEvaluator:
    """Evaluates one run during training; all ranks have to call each method at the same step."""

    evaluator: Evaluator
    pyramid: ImagePyramid
    group: ProcessGroup
    reporter: Reporter | NullReporter
    run_dir: Path
    interval_images: int | None  # if None, `share` decides how often evaluations run
    share: float  # evaluations take up to this share of the run's time; the first and last evaluations may exceed it
    images: int  # image count at which the run starts or resumes

    def __post_init__(self) -> None:
        self._began, self._spent, metrics = time.monotonic(), 0.0, self.evaluator.metrics
        self.took = 0.0  # seconds of the last evaluation
        for name, metric in [*metrics.items()]:
            try:
                images_compared(name, metric, self.evaluator.count, self.pyramid)
            except UserError as error:  # the training set is too small for this metric, so the metric is left out
                self.reporter.line(f"{name} is left out: {error.problem}")
                del metrics[name]
        self.decides = next((metric.decides for metric in metrics.values() if metric.decides), None)
        self._evaluated_at = self.images
        kept = [directory for directory in checkpoints_of(self.run_dir) if int(directory.name) <= self.images]
        best = best_of(kept) if self.group.is_main else None
        self._best = self.group.broadcast_object(None if best is None else mark_of(best, BEST))
        self.mark: dict[str, Any] | None = None  # a new best result that no checkpoint stores yet

    def is_due(self, before: int, images: int) -> bool:
        """Whether the step from image count `before` to `images` reaches a multiple of `interval_images`."""
        every = self.interval_images
        return every is not None and bool(self.evaluator.metrics) and is_due(every, before, images)

    def at_tick(self, g_ema: Generator, phase: Phase, images: int, total: int) -> dict[str, float]:
        """Evaluate on all ranks if an evaluation is due; returns {TensorBoard tag: value}, {} without evaluation."""
        metrics = self.evaluator.metrics.values()
        if all(phase.resolution < one.least_resolution for one in metrics) or not self._is_time(images, total):
            return {}
        began, is_first = time.monotonic(), not self.took
        try:
            shown = RenderSettings(phase.resolution, phase.alpha)
            found = self.evaluator.evaluate(g_ema, shown, self.pyramid, group=self.group)
        except (UserError, RemoteUserError, torch.OutOfMemoryError) as error:  # failed evaluations must not end a run
            if isinstance(error, torch.OutOfMemoryError) and self.group.world_size > 1:  # else other ranks hang
                raise StepFailed("Out of memory in an evaluation.", "Set evaluation.metrics=[] to skip it.") from error
            self.reporter.line(f"No evaluation at {images:,} images: {error}")
            return {}
        finally:
            self._evaluated_at, self.took = images, time.monotonic() - began
            self._spent += self.took
            if self.interval_images is None:  # the class `Eta` counts such evaluations apart from the training speed
                self.reporter.evaluated(self.took)
        for note in found.notes if is_first else ():
            self.reporter.line(note)
        for name, picture in found.pictures.items():
            self.reporter.picture(f"images/{name}", picture, self.run_dir / "samples" / f"{name}.png", images)
        self._mark_best(found.values, phase)
        return {f"metrics/{name}": value for name, value in found.values.items()}

    def _is_time(self, images: int, total: int) -> bool:
        """Whether an evaluation is due; at the end, always. If `interval_images` is None, rank 0's clock decides."""
        if (is_last := images >= total) or self.interval_images is not None:
            return is_last or self.is_due(self._evaluated_at, images)
        if images - self._evaluated_at < total / MAX_POINTS:
            return False
        allowed = self.share * (time.monotonic() - self._began)  # seconds for past evaluations, this one, the final one
        return bool(self.group.broadcast_object(self._spent + 2 * self.took <= allowed))

    def _mark_best(self, values: dict[str, float], phase: Phase) -> None:
        """Log the metrics; a new best result goes into `self.mark`, which the next checkpoint stores."""
        name = next((name for name in values if name.startswith(f"{self.decides}@")), None)
        if name is not None and math.isfinite(values[name]):
            mark = {"metric": name, "value": values[name], "resolution": phase.resolution, "fading": phase.alpha < 1}
            if is_better(mark, self._best):
                self._best = self.mark = mark
        self.reporter.line(f"Quality: {'. '.join(in_words(values))}.")
