"""The interface of every metric, and the task that the metrics of one evaluation share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from pggan.metrics.cache import cached
from pggan.metrics.collect import Collector, FeatureCollector, Progress, feed
from pggan.metrics.extractor import Extractor
from pggan.metrics.extractors import pixel_extractor
from pggan.metrics.images import Images, RealImages
from pggan.metrics.rank_partition import RankPartition

BESIDE = ("_floor", "_reals")  # endings of numbers that say what another one is among reals


def label(metric: str, extractor: str, count: int) -> str:
    """The name of a number: what was measured, by which features, on how many images."""
    return f"{metric}@{extractor}-{count}"


def summary(values: Mapping[str, float]) -> Iterator[str]:
    """The numbers of an evaluation in few words: without those of single levels, and floors in brackets.

    A floor is that by the same features.  One of another count says so: it is that of fewer images, and not what fakes
    can come down to.
    """
    for name, value in values.items():
        measured, _, conditions = name.partition("@")
        metric, slash, level = measured.partition("/")
        if metric.endswith(BESIDE) or level.isdecimal():
            continue
        features = conditions.rpartition("-")[0]
        beside = (
            f" ({_beside(ending, key, name)} {other:.3g})"
            for ending in BESIDE
            for key, other in values.items()
            if key.rpartition("-")[0] == f"{metric}{ending}{slash}{level}@{features}"
        )
        yield f"{name} {value:.3g}{''.join(beside)}"


def _beside(ending: str, key: str, name: str) -> str:
    """What stands before the number `key`, one of BESIDE, in the brackets behind that of `name`."""
    count, word = key.rpartition("-")[2], ending.removeprefix("_")
    return word if count == name.rpartition("-")[2] else f"{word} of {int(count):,} images:"


T = TypeVar("T")


@dataclass
class Task:
    """The images of one evaluation: fakes beside reals, at one resolution."""

    fakes: Images
    reals: RealImages
    channels: int
    partition: RankPartition
    extractor: Extractor | None
    progress: Progress
    mirror: bool | None = None  # whether training mirrors images at random; None: that is not known
    seconds: dict[str, float] = field(default_factory=dict)  # of what the metrics share
    # By the name of an extractor, and whether the images are mirrored:
    _fakes: dict[tuple[str, bool], FeatureCollector] = field(default_factory=dict)
    _reals: dict[tuple[str, bool], int] = field(default_factory=dict)
    _found: dict[tuple[str, bool], Tensor | None] = field(default_factory=dict)

    @property
    def resolution(self) -> int:
        """The side of the images."""
        return self.reals.resolution

    @property
    def is_main(self) -> bool:
        """Whether this rank calculates what is calculated once."""
        return self.partition.group.is_main

    def precisely(self, calculate: Callable[..., T], *values: Tensor) -> T:
        """The result of `calculate` for `values` where float64 can be calculated; Apple's devices have none.

        That is the CPU, too, where other programs use a GPU's memory: the other ranks wait for this result.
        """
        if self.partition.group.device.type == "cuda":
            try:
                return calculate(*[one.to(self.partition.group.device) for one in values])
            except torch.OutOfMemoryError:
                torch.cuda.empty_cache()
        return calculate(*values)

    @cached_property
    def pixels(self) -> Extractor:
        """The extractor that needs no weights."""
        return pixel_extractor()

    def want_features(
        self, extractor: Extractor, *, fakes: int, reals: int, mirrored: bool = False
    ) -> FeatureCollector:
        """Announce that the features of so many images will be asked for; returns the collector of the fakes.

        Args: mirrored: those of the images flipped left to right, which are counted and kept apart.
        """
        key = extractor.name, mirrored
        known = self._fakes.setdefault(key, FeatureCollector(extractor, 0, self.partition, mirrored=mirrored))
        known.count = max(known.count, fakes)
        self._reals[key] = max(self._reals.get(key, 0), reals)
        return known

    def real_features(self, extractor: Extractor, count: int, *, mirrored: bool = False) -> Tensor | None:
        """The features float32 [count, F] of the first reals, on rank 0.  Called by all ranks."""
        key = extractor.name, mirrored
        images = self._reals[key]
        if key not in self._found:

            def calculate() -> Tensor:
                collector = FeatureCollector(extractor, images, self.partition, mirrored=mirrored)
                reading = feed(self.reals, [collector], self.partition, "features of reals", self.progress)
                self.add_seconds("features", collector.seconds)
                self.add_seconds("reading reals", reading)
                return collector.rows(images)

            facts = {"extractor": extractor.name, **extractor.facts, "precision": "float32", "mirrored": mirrored}
            if extractor.repeatable:
                self._found[key] = self.statistic("features", images, facts, calculate)
            else:
                rows = calculate()
                self._found[key] = rows if self.is_main else None
        found = self._found[key]
        return None if found is None else found[:count]

    def statistic(
        self, name: str, count: int, parameters: dict[str, Any], calculate: Callable[[], Tensor]
    ) -> Tensor | None:
        """Numbers of the first `count` reals, on rank 0: from the cache, or calculated by all ranks."""
        facts = {
            "statistic": name,
            "data": self.reals.pyramid.fingerprint,
            "resolution": self.resolution,
            "images": count,
            **parameters,
        }
        return cached(facts, calculate, self.partition.group)

    def add_seconds(self, what: str, seconds: float) -> None:
        """Count time that several metrics share."""
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds


class Metric(ABC):
    """One metric of an evaluation: shown images by its collectors, then asked for its numbers."""

    key: ClassVar[str]  # as metrics= and the file name it
    paper_images: ClassVar[int]  # that the paper compares, on each side
    least_images: ClassVar[int]
    uses_reals: ClassVar[bool] = True  # as many as fakes
    takes_more_fakes: ClassVar[bool] = False  # than there are reals, where the user asks for so many
    uses_extractor: ClassVar[bool] = True

    def __init__(self, task: Task, count: int) -> None:
        self.task, self.count = task, count

    @property
    def extractor(self) -> Extractor:
        """The extractor of the evaluation."""
        assert self.task.extractor is not None, "an evaluation with this metric loads one"
        return self.task.extractor

    @classmethod
    def undefined(cls, resolution: int) -> str:
        """Why there is no such number at `resolution`; empty where there is one."""
        return ""

    @classmethod
    def temporary_bytes(cls, count: int, resolution: int, channels: int) -> int:
        """The disk space that the metric of `count` images takes while it is calculated."""
        return 0

    @abstractmethod
    def collectors(self) -> list[Collector]:
        """The collectors that have to see the fakes; the same one may serve several metrics."""

    @abstractmethod
    def parameters(self) -> dict[str, Any]:
        """Everything that the definition leaves open, as plain values."""

    @abstractmethod
    def values(self) -> dict[str, float]:
        """The numbers by name, on rank 0.  Called by all ranks, when the fakes have been shown."""

    def notes(self) -> list[str]:
        """Sentences about what the numbers do not say; asked for on rank 0, after `values`."""
        return []

    def named(self, metric: str, value: float, count: int | None = None) -> dict[str, float]:
        """A number under the extractor's name."""
        return {label(metric, self.extractor.name, count or self.count): value}


class FeatureMetric(Metric):
    """A metric of the features of fakes beside those of as many reals, or of all if there are fewer."""

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.real_count = min(count, task.reals.pyramid.images)
        self.fakes = task.want_features(self.extractor, fakes=count, reals=self.real_count)

    def collectors(self) -> list[Collector]:
        return [self.fakes]

    def values(self) -> dict[str, float]:
        fakes, reals = self.fakes.rows(self.count), self.task.real_features(self.extractor, self.real_count)
        if reals is None:
            return {}
        return self.task.precisely(self.compare, fakes, reals)

    @abstractmethod
    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        """The numbers by name, of features [N, F] of fakes and of reals, where float64 can be calculated."""
