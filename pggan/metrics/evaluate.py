"""One evaluation: a generator's images beside those of a data set, by any number of metrics at once.

Training calls `evaluate` with the averaged generator as it is, `pggan evaluate` with that of a checkpoint.
"""

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from pggan.config import METRICS
from pggan.core.disk import require_free_space
from pggan.core.errors import UserError
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics.base import Metric, Task
from pggan.metrics.collect import Collector, Progress, feed
from pggan.metrics.extractor import Extractor
from pggan.metrics.images import FakeImages, RealImages
from pggan.metrics.neighbours import NearestNeighbours
from pggan.metrics.rank_partition import RankPartition
from pggan.sampling.generate import RenderSettings
from pggan.sampling.images import Pixels
from pggan.sampling.trained_generator import TrainedGenerator

MORE_SPACE = "Use fewer images (count), or set a larger place: TMPDIR=DIRECTORY."


def class_of(name: str) -> type[Metric]:
    """The class of a metric, which its file in this subpackage defines: NAME.py."""
    module = import_module(f"pggan.metrics.{name}")
    classes = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Metric)]
    (found,) = (one for one in classes if one.__module__ == module.__name__)
    return found


METRIC_CLASSES = {name: class_of(name) for name in METRICS}


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation, on rank 0; on other ranks, `values` are the same and the rest is empty."""

    values: dict[str, float]  # by names that carry extractor and count
    seconds: dict[str, float] = field(default_factory=dict)  # per metric, and of what metrics share; of rank 0
    parameters: dict[str, dict[str, Any]] = field(default_factory=dict)  # per metric
    notes: list[str] = field(default_factory=list)  # what the numbers do not say
    pictures: dict[str, Pixels] = field(default_factory=dict)  # by file name without ending


def needs_extractor(metrics: Sequence[str]) -> bool:
    """Whether any of `metrics` looks at features."""
    return any(METRIC_CLASSES[name].uses_extractor for name in metrics)


def has_weights(extractor: Extractor, features: str) -> bool:
    """Whether the extractor has the weights of `features`, those of an architecture: NAME@CHECKSUM."""
    checksum = features.partition("@")[2]
    return bool(checksum) and str(extractor.facts.get("weights", "")).startswith(checksum)


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
    generator: TrainedGenerator,
    settings: RenderSettings,
    pyramid: ImagePyramid,
    metrics: Sequence[str],
    *,
    extractor: Extractor | None,
    count: int | None,
    first_seed: int,
    group: ProcessGroup,
    mirror: bool | None = None,
    progress: Progress = lambda what, done, blocks: None,
) -> Evaluation:
    """The numbers of `metrics`; all ranks call it, and each draws and reads its share.

    Args: settings: what the generator draws; reals are those of the same resolution, not faded; extractor: of the
    metrics that look at features, None without any; count: images on each side, None for those of each paper;
    first_seed: fakes are those of this seed and the following ones; mirror: whether training mirrored images at random,
    None where that is not known; progress: called on every rank.
    Raises UserError, before anything is drawn, for too few images, for channels that differ, and for a full disk.
    """
    channels, features = generator.network.architecture.channels, generator.network.architecture.features
    if channels != pyramid.channels:
        problem = f"The generator draws images of {channels} channels; those of {pyramid.path} have {pyramid.channels}."
        raise UserError(problem, "Give data= the images that it was trained with, or like them.")
    partition, reals = RankPartition.at(settings.resolution, group), RealImages(pyramid, settings.resolution)
    fakes = FakeImages(generator, settings, reals, first_seed)
    task = Task(fakes, reals, channels, partition, extractor, progress, mirror)
    notes = [f"The images of {pyramid.path} are grey, repeated to three channels."] if reals.are_grey else []
    if extractor is not None and features is not None and has_weights(extractor, features):
        notes.append(f"D looked at features of {extractor.name} in training, so metrics by them are too good.")
    if settings.resolution < generator.resolution:
        side = f"{settings.resolution}x{settings.resolution}"
        notes.append(
            f"What draws {side} has hardly been trained since G grew beyond it, so the numbers say little about G."
        )
    elif settings.resolution > generator.resolution:
        grown, side = (f"{one}x{one}" for one in (generator.resolution, settings.resolution))
        notes.append(f"G had grown to {grown} when it was saved: what draws {side} was not trained yet.")
    counts: dict[type[Metric], int] = {}
    for name in metrics:
        metric = METRIC_CLASSES[name]
        if why := metric.undefined(settings.resolution):
            notes.append(f"{name} is left out: at {settings.resolution}x{settings.resolution}, {why}.")
            continue
        counts[metric] = images = images_of(metric, count, pyramid)
        if images < (count or metric.paper_images):
            asked = f"{count:,} were asked for" if count else f"its paper takes {metric.paper_images:,}"
            notes.append(f"{name} compares {images:,} images, all that the data has; {asked}.")
    needed = sum(metric.temporary_bytes(images, settings.resolution, channels) for metric, images in counts.items())
    with group.collective_errors():
        require_free_space(Path(tempfile.gettempdir()), needed, MORE_SPACE)
    return measure(task, [metric(task, images) for metric, images in counts.items()], notes)


def measure(task: Task, metrics: Sequence[Metric], notes: list[str]) -> Evaluation:
    """Draw the fakes once, for all metrics together, and ask each metric for its numbers."""
    collectors: list[Collector] = []
    for metric in metrics:
        collectors += [one for one in metric.collectors() if one not in collectors]
    task.add_seconds("drawing", feed(task.fakes, collectors, task.partition, "drawing fakes", task.progress))
    owners = {id(one): metric.key for metric in metrics if not metric.uses_extractor for one in metric.collectors()}
    seconds: dict[str, float] = {metric.key: 0.0 for metric in metrics}
    for one in collectors:
        if id(one) in owners:
            seconds[owners[id(one)]] += one.seconds
        else:
            task.add_seconds("features", one.seconds)
    values: dict[str, float] = {}
    for metric in metrics:
        start, shared = time.perf_counter(), sum(task.seconds.values())
        values |= metric.values()
        passed = time.perf_counter() - start
        seconds[metric.key] += max(passed - (sum(task.seconds.values()) - shared), 0.0)
    values = task.partition.group.broadcast_object(values)
    if not task.is_main:
        return Evaluation(values)
    pictures = {one.key: one.picture() for one in metrics if isinstance(one, NearestNeighbours)}
    parameters = {metric.key: {"images": metric.count, **metric.parameters()} for metric in metrics}
    notes = notes + [note for metric in metrics for note in metric.notes()]
    return Evaluation(values, task.seconds | seconds, parameters, notes, pictures)
