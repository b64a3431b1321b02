"""One evaluation: a generator's images beside those of a data set, by any number of metrics at once.

Training calls `evaluate` with its averaged generator, `pggan evaluate` with the generator of a checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pggan.core.errors import UserError
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics.base import Metric, Task
from pggan.metrics.extractors import Extractor
from pggan.metrics.features import FrechetInceptionDistance, KernelInceptionDistance, PrecisionRecall
from pggan.metrics.images import FakeImages, Progress, RankPartition, RealImages, feed
from pggan.metrics.ms_ssim import MultiScaleSimilarity
from pggan.metrics.neighbours import NearestNeighbours
from pggan.metrics.swd import SlicedWasserstein
from pggan.networks.networks import Generator
from pggan.sampling.generate import RenderSettings
from pggan.sampling.images import Pixels

CLASSES = (
    *(SlicedWasserstein, MultiScaleSimilarity, KernelInceptionDistance, FrechetInceptionDistance, PrecisionRecall),
    NearestNeighbours,
)
METRIC_CLASSES: dict[str, type[Metric]] = {metric.key: metric for metric in CLASSES}


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation; pictures on rank 0 only."""

    values: dict[str, float]  # by names that carry extractor and count
    notes: list[str] = field(default_factory=list)  # what the numbers do not say
    pictures: dict[str, Pixels] = field(default_factory=dict)  # by file name without ending


def needs_extractor(metrics: Sequence[str]) -> bool:
    """Whether any of `metrics` looks at features."""
    return any(METRIC_CLASSES[name].uses_extractor for name in metrics)


def images_of(metric: type[Metric], count: int | None, pyramid: ImagePyramid, prefix: str = "") -> int:
    """How many images a metric compares: `count`, or as many as the paper, and no more than there are reals.

    Some take `count` fakes beside fewer reals all the same.
    Args: prefix: of the keys in messages.
    Raises UserError where that is too few.
    """
    asked, least = count or metric.paper_images, metric.least_images
    needs = f"{prefix}metrics={metric.key} needs at least {least} images"
    if pyramid.images < least:
        problem = f"{needs}; {pyramid.path} has {pyramid.images}."
        raise UserError(problem, "Give more data, or leave this metric out.")
    if asked < least:
        raise UserError(f"{needs}; {prefix}count={asked}.", f"Raise {prefix}count=, or leave this metric out.")
    more = not metric.uses_reals or (metric.takes_more_fakes and count is not None)
    return asked if more else min(asked, pyramid.images)


def evaluate(
    network: Generator,
    settings: RenderSettings,
    pyramid: ImagePyramid,
    metrics: Sequence[str],
    *,
    extractor: Extractor | None,
    count: int | None,
    first_seed: int,
    group: ProcessGroup,
    mirror: bool = False,
    known: dict[Any, Any] | None = None,
    progress: Progress = lambda what, done, blocks: None,
) -> Evaluation:
    """The numbers of `metrics`; all ranks call it, and each draws and reads its share.

    Args: settings: what the generator draws; reals have the same resolution and are not faded; extractor: of the
    metrics that look at features, None without any; count: images on each side, None for the count of each paper;
    first_seed: seed of the first fake, the others follow; mirror: whether training mirrors images at random;
    known: numbers of these reals, kept for the next evaluation; progress: called on every rank.
    Raises UserError, before anything is drawn, for too few images and for channels that differ.
    """
    channels, features = network.architecture.channels, network.architecture.features
    if channels != pyramid.channels:
        problem = f"The generator draws images of {channels} channels; {pyramid.path} has images of {pyramid.channels}."
        raise UserError(problem, "Give data= the images that it was trained with, or like them.")
    side, notes, found = settings.resolution, [], list[Metric]()
    partition, reals = RankPartition.at(side, group), RealImages(pyramid, side)
    fakes = FakeImages(network, settings, reals, first_seed)
    task = Task(fakes, reals, channels, partition, extractor, progress, mirror, {} if known is None else known)
    digest = (features or "").partition("@")[2]  # of the weights of what D looked at
    if extractor is not None and digest and extractor.weights.startswith(digest):
        notes.append(f"D looked at features of {extractor.name} in training, so metrics by them are too good.")
    for name in metrics:
        metric = METRIC_CLASSES[name]
        if why := metric.undefined(side):
            notes.append(f"{name} is left out: at {side}x{side}, {why}.")
            continue
        images = images_of(metric, count, pyramid)
        if images < (count or metric.paper_images):
            notes.append(f"{name} compares {images:,} images, all that the data has.")
        found.append(metric(task, images))
    if not found:
        problem = f"metrics={[*metrics]}: {notes[-1]}"
        raise UserError(problem, "Choose other metrics=, or another resolution=.")
    feed(fakes, task.collectors, partition, "drawing fakes", progress)  # once for all metrics
    values = group.broadcast_object({name: value for one in found for name, value in one.values().items()})
    pictures = {one.key: one.picture() for one in found if isinstance(one, NearestNeighbours) and group.is_main}
    return Evaluation(values, notes, pictures)
