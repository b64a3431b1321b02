"""Metrics of generated images; the images are generated once, and all metrics use the same images."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from pggan.core.errors import UserError, nearest
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics.images import Collector, FakeImages, RankPartition, RealImages, RowCollector, feed
from pggan.networks.networks import Generator
from pggan.sampling.generate import RenderSettings
from pggan.sampling.images import Pixels

METRICS = {
    "swd": "pggan.metrics.swd:SlicedWasserstein",
    "ms_ssim": "pggan.metrics.ms_ssim:MultiScaleSimilarity",
    "kid": "pggan.metrics.features:KernelInceptionDistance",
    "fid": "pggan.metrics.features:FrechetInceptionDistance",
    "precision_recall": "pggan.metrics.features:PrecisionRecall",
    "neighbours": "pggan.metrics.features:NearestNeighbours",
}

C = TypeVar("C", bound=Collector)


def find(key: str, name: str, known: Mapping[str, str]) -> Any:
    """Import the object named `name`, which is a key of `known` or MODULE:OBJECT; raises UserError if this fails."""
    place = known.get(name, name)
    if ":" not in place:
        raise UserError(f"There is no {key}={name}.", nearest(name, [*known, "MODULE:OBJECT"]))
    if name not in known and "" not in sys.path:  # lets Python import a user's module from the working directory
        sys.path.insert(0, "")
    try:
        return resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "Write MODULE:OBJECT: a module that Python can import, and the name of an object in that module."
        raise UserError(f"{key}={name} can't be loaded: {error}.", remedy) from error


def label(metric: str, extractor: str, count: int) -> str:
    """Return the full name of a metric's value, METRIC@EXTRACTOR-IMAGES, such as kid@inception-50000."""
    return f"{metric}@{extractor}-{count}"


@dataclass
class Task:
    """The fakes and reals of one evaluation, and results that metrics share; all ranks have to call each method."""

    fakes: FakeImages
    reals: RealImages
    partition: RankPartition
    extractor: Any  # The extractor is None if no metric needs features.
    known: dict[Any, Any] = field(default_factory=dict)  # Results for reals are kept for later evaluations.
    collectors: dict[Any, Any] = field(default_factory=dict)

    def shown_reals(self, collector: C, first: int = 0) -> C:
        """Feed `collector.count` reals to `collector`, starting at index `first`; returns `collector`."""
        reals = RealImages(self.reals.pyramid, self.reals.resolution, first)
        feed(reals, [collector], self.partition, "Looking at reals")
        return collector

    def once(self, what: tuple[Any, ...], calculate: Callable[[], Any]) -> Any:
        """Return the result of `calculate`, cached under the key `what`; the result must depend on reals only."""
        key = (self.reals.resolution, *what)
        if key not in self.known:
            self.known[key] = calculate()
        return self.known[key]

    def of_fakes(self, calculate: Callable[[Tensor], Tensor], count: int) -> RowCollector:
        """Return a collector that applies `calculate` to at least `count` fakes; metrics share one per `calculate`."""
        found: RowCollector = self.collectors.setdefault(calculate, RowCollector(calculate, 0, self.partition))
        found.count = max(found.count, count)
        return found

    def of_reals(self, calculate: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """Return the results [count, …] of `calculate` for the first `count` reals."""
        collector = RowCollector(calculate, count, self.partition)
        found: Tensor = self.once((calculate, count), lambda: self.shown_reals(collector).rows())
        return found

    def precise(self, *values: Tensor) -> list[Tensor]:
        """Move tensors to this rank's CUDA device, else to the CPU, because Apple's GPUs have no float64."""
        device = self.partition.group.device
        return [one.to(device if device.type == "cuda" else "cpu") for one in values]


class Metric(ABC):
    """Base class of metrics.  The constructor adds collectors to `task`; `values` is called after all fakes exist."""

    paper_images: ClassVar[int]  # number of fakes, and of reals, that the metric's paper uses
    least_images: ClassVar[int]
    least_resolution: ClassVar[int] = 4  # At lower resolutions, the metric is left out.
    takes_more_fakes: ClassVar[bool] = False  # whether the metric may compare more fakes than reals
    uses_extractor: ClassVar[bool] = False
    decides: ClassVar[str | None] = None  # name of the value that selects a run's best checkpoint (lowest is best)

    def __init__(self, task: Task, count: int) -> None:
        self.task, self.count = task, count

    @abstractmethod
    def values(self) -> dict[str, float]:
        """Return {name from the function `label`: value}; all ranks call this method, only rank 0's result is used."""

    def pictures(self) -> dict[str, Pixels]:
        """Return pictures as {file name without suffix: picture}; only rank 0 calls this method, after `values`."""
        return {}


@dataclass(frozen=True)
class Evaluation:
    """The results of one evaluation; only rank 0 has pictures."""

    values: dict[str, float]  # values by full name, such as kid@inception-50000
    notes: list[str]  # hints for reading the values
    pictures: dict[str, Pixels]  # pictures by file name without suffix


class Evaluator:
    """Evaluates one generator after another; results that depend on reals only are cached."""

    def __init__(self, names: Sequence[str], extractor: str, device: torch.device, count: int | None) -> None:
        """Load metrics and extractor, or raise UserError.  Metrics use up to `count` fakes (None: as in papers)."""
        self.count, self.known = count, dict[Any, Any]()
        self.metrics: dict[str, type[Metric]] = {name: find("metrics", name, METRICS) for name in names}
        self.extractor: Any = None
        if any(metric.uses_extractor for metric in self.metrics.values()):
            self.extractor = resolve_name("pggan.metrics.extractors:load_extractor")(extractor, device)

    def evaluate(
        self,
        network: Generator,
        settings: RenderSettings,
        pyramid: ImagePyramid,
        *,
        group: ProcessGroup,
        shows_progress: bool = False,
    ) -> Evaluation:
        """Evaluate `network`; all ranks have to call this method.

        `pyramid` is the dataset of reals.  All calls must pass the same dataset, because results for reals are cached.
        Raises UserError if there are too few images.
        """
        side = settings.resolution
        partition, reals = RankPartition.at(side, group, shows_progress=shows_progress), RealImages(pyramid, side)
        fakes = FakeImages(network, settings, reals)
        task = Task(fakes, reals, partition, self.extractor, self.known)
        found = [
            metric(task, images_compared(name, metric, self.count, pyramid))
            for name, metric in self.metrics.items()
            if side >= metric.least_resolution
        ]
        if not found:
            problem = f"No metric of metrics=[{','.join(self.metrics)}] can be measured at {side}x{side}."
            raise UserError(problem, "Choose other metrics=, or a higher resolution=.")
        feed(fakes, [*task.collectors.values()], partition, "Drawing fakes")
        values = group.broadcast_object({name: value for one in found for name, value in one.values().items()})
        pictures = {name: picture for one in found if group.is_main for name, picture in one.pictures().items()}
        notes, looked_at = list[str](), (network.architecture.features or "").partition("@")[0]
        if self.extractor is not None and looked_at == self.extractor.name:
            notes = [f"Metrics with {looked_at} look too good: the discriminator was trained on these features."]
        return Evaluation(values, notes, pictures)


def images_compared(name: str, metric: type[Metric], count: int | None, pyramid: ImagePyramid) -> int:
    """Return the number of fakes that `metric` uses; raises UserError if there are too few images for this metric."""
    compared = min(count or metric.paper_images, pyramid.images)
    if compared < metric.least_images:
        problem = f"metrics={name} needs at least {metric.least_images} images; there are {compared}."
        raise UserError(problem, "Raise count=, give more data, or leave this metric out.")
    return count if count is not None and metric.takes_more_fakes else compared
