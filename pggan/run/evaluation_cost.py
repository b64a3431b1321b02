"""The time that evaluations during training take: what one is expected to cost, and whether it fits into its share."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from pggan.config import EvaluationConfig
from pggan.core.intervals import multiples_between
from pggan.core.schedule import Phase
from pggan.metrics.evaluate import METRIC_CLASSES, needs_extractor
from pggan.metrics.extractor import Extractor
from pggan.metrics.ms_ssim import MultiScaleSimilarity
from pggan.metrics.neighbours import NearestNeighbours
from pggan.metrics.swd import SlicedWasserstein, levels_of

MAX_POINTS = 100  # of a whole run, unless an interval is given: enough for a curve
# What an evaluation takes, until one is measured.  With one thread of a CPU, SWD of 300 images from 8x8 to 64x64 took
# 3.0 to 3.5 ms of every image and level, and as long again for the floor; drawing an image at 32x32 2.4 ms, about a
# sixth of what it costs in training.
SWD_SECONDS = 0.004  # of an image at one level; sorted on the CPU, on any device
MS_SSIM_SECONDS = 2.5e-7  # of a pixel of an image, over all scales: 0.15 us at 32x32, 0.22 at 256x256 with one thread
DRAWING_SHARE = 0.25  # of the time in which training shows an image
TIMED_IMAGES = 8  # whose features are taken to see how long that takes


@dataclass(frozen=True)
class EvaluationCost:
    """The time that an evaluation is expected to take: of drawing, SWD, MS-SSIM and features, by the images.

    Args: count: images on each side; fakes, reals: images whose features are taken, of reals in the first evaluation at
    a resolution; feature_seconds: of the features of one image; ranks: that share the images.
    """

    metrics: Sequence[str]
    count: int
    fakes: int
    reals: int
    feature_seconds: float
    ranks: int = 1

    def seconds(self, resolution: int, seconds_per_image: float, *, first: bool) -> float:
        """The time at `resolution`, for the first evaluation there or another; zero where no metric is defined.

        Args: seconds_per_image: of training.
        """
        metrics = [name for name in self.metrics if not METRIC_CLASSES[name].undefined(resolution)]
        if not metrics:
            return 0.0
        compared = 2 if first else 1  # the first one compares reals with reals, too
        swd = SWD_SECONDS * len(levels_of(resolution)) * compared if SlicedWasserstein.key in metrics else 0.0
        ms_ssim = MS_SSIM_SECONDS * resolution**2 * compared if MultiScaleSimilarity.key in metrics else 0.0
        shown = self.fakes + self.reals * first if needs_extractor(metrics) else 0
        divided = (self.count * (swd + ms_ssim) + shown * self.feature_seconds) / self.ranks
        return self.count * DRAWING_SHARE * seconds_per_image + divided

    def seconds_of_run(self, phases: Mapping[Phase, float], total: int, every: int) -> float:
        """The time of all evaluations of a run of `total` images, one `every` so many.

        Args: phases: those that the run reaches, and the seconds in which training shows an image.
        """
        seconds, seen = 0.0, set[int]()
        for phase, each in phases.items():
            side, count = phase.resolution, multiples_between(every, phase.start, min(phase.end, total))
            count += phase.start < total <= phase.end and total % every > 0  # the end has one, too
            if count > 0 and side not in seen:
                seen.add(side)
                seconds, count = seconds + self.seconds(side, each, first=True), count - 1
            seconds += max(count, 0) * self.seconds(side, each, first=False)
        return seconds


def evaluation_cost(
    config: EvaluationConfig,
    images: int,
    feature_seconds: float,
    *,
    ranks: int,
    mirror: bool,
    metrics: Sequence[str] | None = None,
) -> EvaluationCost:
    """The cost of evaluations on data of so many images.

    Args: mirror: whether training mirrors images; metrics: those of `config` that there are enough images for; None:
    all of them.
    """
    names = config.metrics if metrics is None else metrics
    # Fakes are compared with as many reals, but for metrics that look at fakes alone.
    alone = any(not METRIC_CLASSES[name].uses_reals for name in names)
    compared = min(config.count, images)
    fakes = reals = compared
    if NearestNeighbours.key in names:  # of both sides in both orientations, and of all training images
        fakes, reals = compared * (1 + mirror), images + compared * mirror
    count = config.count if alone else compared
    return EvaluationCost(tuple(names), count, fakes, reals, feature_seconds, ranks)


def time_features(extractor: Extractor | None, resolution: int, device: torch.device) -> float:
    """Seconds of the features of one image of `resolution` on `device`, which are taken of a few; none take none."""
    if extractor is None:
        return 0.0
    pixels = torch.arange(TIMED_IMAGES * 3 * resolution**2, device=device).to(torch.uint8)
    images = pixels.reshape(TIMED_IMAGES, 3, resolution, resolution)
    try:
        extractor.features(images)  # the first call chooses kernels
        began = time.perf_counter()
        extractor.features(images)
        return (time.perf_counter() - began) / TIMED_IMAGES
    except torch.OutOfMemoryError:  # nothing to end a training for; the evaluation itself will say so
        return 0.0


class EvaluationBudget:
    """Whether an evaluation fits into its share of the training time: evenly spread, with room for one at the end."""

    def __init__(self, share: float, cost: EvaluationCost, now: float) -> None:
        """Args: share: of the time, 0 to 1; now: seconds, by the clock of all later calls."""
        self.share, self.cost, self.began = share, cost, now
        self.spent, self._ended = 0.0, now
        self._took: dict[int, float] = {}  # seconds of the last one, by resolution

    def allows(self, resolution: int, seconds_per_image: float, now: float, *, last: bool) -> bool:
        """Whether there is time for an evaluation.

        Args: seconds_per_image: of training; last: this is the end of the run.
        """
        expected = self.expected(resolution, seconds_per_image)
        repeated = self.cost.seconds(resolution, seconds_per_image, first=False)
        reserve = self._took.get(resolution, repeated)
        allowed, since_the_last = self.share * (now - self.began), self.share * (now - self._ended)
        if last:
            return self.spent + expected <= allowed
        return self.spent + expected + reserve <= allowed and expected <= since_the_last

    def expected(self, resolution: int, seconds_per_image: float) -> float:
        """Seconds of the next evaluation: those of the last one there, or what the first one should cost.

        Args: seconds_per_image: of training.
        """
        known = self._took.get(resolution)
        return self.cost.seconds(resolution, seconds_per_image, first=True) if known is None else known

    def note(self, resolution: int, began: float, now: float) -> None:
        """Count an evaluation that took from `began` to `now`."""
        self.spent += now - began
        # The first one at a resolution compares reals with reals, too, unless that was kept from another run.
        self._took[resolution] = now - began
        self._ended = now
