"""The interface of every metric, and the task that the metrics of one evaluation share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from pggan.metrics.extractors import Extractor
from pggan.metrics.images import Collector, Images, Progress, RankPartition, RealImages, RowCollector, feed

T = TypeVar("T")
C = TypeVar("C", bound=Collector)


def label(metric: str, extractor: str, count: int) -> str:
    """The name of a number: what was measured, by which features, on how many images."""
    return f"{metric}@{extractor}-{count}"


def summary(values: Mapping[str, float]) -> Iterator[str]:
    """The numbers of an evaluation in few words, without the numbers of single levels."""
    for name, value in values.items():
        if not name.partition("@")[0].partition("/")[2].isdecimal():
            yield f"{name} {value:.3g}"


@dataclass
class Task:
    """The images of one evaluation: fakes beside reals, at one resolution."""

    fakes: Images
    reals: RealImages
    channels: int
    partition: RankPartition
    extractor: Extractor | None
    progress: Progress
    mirror: bool = False  # whether training mirrors images at random
    known: dict[Any, Any] = field(default_factory=dict)  # of the reals, kept from one evaluation to the next
    collectors: list[Collector] = field(default_factory=list)  # that have to see the fakes
    # By the name of an extractor, and whether the images are mirrored:
    _fakes: dict[tuple[str, bool], RowCollector] = field(default_factory=dict)
    _reals: dict[tuple[str, bool], int] = field(default_factory=dict)

    @property
    def resolution(self) -> int:
        """The side of the images."""
        return self.reals.resolution

    @property
    def is_main(self) -> bool:
        """Whether this rank calculates what is calculated once."""
        return self.partition.group.is_main

    def precisely(self, calculate: Callable[..., T], *values: Tensor) -> T:
        """The result of `calculate` where float64 can be calculated: on CUDA, else on the CPU."""
        device = self.partition.group.device
        return calculate(*[one.to(device) for one in values] if device.type == "cuda" else values)

    def collector(self, extractor: Extractor, count: int, *, mirrored: bool = False) -> RowCollector:
        """A collector of features float32 [count, F] of images, or of the images mirrored."""
        shown = (lambda images: extractor.features(images.flip(-1))) if mirrored else extractor.features
        return RowCollector(shown, count, self.partition)

    def shown_fakes(self, collector: C) -> C:
        """The collector, which will be shown the fakes."""
        self.collectors.append(collector)
        return collector

    def want_features(self, extractor: Extractor, *, fakes: int, reals: int, mirrored: bool = False) -> RowCollector:
        """Announce that the features of so many images will be asked for; returns the collector of the fakes."""
        key = extractor.name, mirrored
        if key not in self._fakes:
            self._fakes[key] = self.shown_fakes(self.collector(extractor, 0, mirrored=mirrored))
        known = self._fakes[key]
        known.count = max(known.count, fakes)
        self._reals[key] = max(self._reals.get(key, 0), reals)
        return known

    def real_features(self, extractor: Extractor, count: int, *, mirrored: bool = False) -> Tensor:
        """The features float32 [count, F] of the first reals.  Called by all ranks."""
        images = self._reals[extractor.name, mirrored]

        def calculate() -> Tensor:
            collector = self.collector(extractor, images, mirrored=mirrored)
            feed(self.reals, [collector], self.partition, "features of reals", self.progress)
            return collector.rows()

        return self.once(("features", extractor.name, mirrored, images), calculate)[:count]

    def once(self, what: tuple[Any, ...], calculate: Callable[[], T]) -> T:
        """Numbers of the reals at this resolution, from an earlier evaluation or calculated by all ranks."""
        key = (self.resolution, *what)
        if key not in self.known:
            self.known[key] = calculate()
        found: T = self.known[key]
        return found


class Metric(ABC):
    """One metric: it gives the task its collectors, and has its numbers when they have seen the fakes."""

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

    @abstractmethod
    def values(self) -> dict[str, float]:
        """The numbers by name, on rank 0.  Called by all ranks, when the fakes have been shown."""


class FeatureMetric(Metric):
    """A metric that compares features of fakes with features of as many reals, or of all if there are fewer."""

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.real_count = min(count, task.reals.pyramid.images)
        self.fakes = task.want_features(self.extractor, fakes=count, reals=self.real_count)

    def values(self) -> dict[str, float]:
        fakes, reals = self.fakes.rows()[: self.count], self.task.real_features(self.extractor, self.real_count)
        return self.task.precisely(self.compare, fakes, reals) if self.task.is_main else {}

    def named(self, metric: str, value: float, count: int | None = None) -> dict[str, float]:
        """A number under the extractor's name."""
        return {label(metric, self.extractor.name, count or self.count): value}

    @abstractmethod
    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        """The numbers by name, of features [N, F] of fakes and of reals, where float64 can be calculated."""
