"""How good generated images are: any number of metrics at once, each with its definition to the last parameter.

Training evaluates its averaged generator, `pggan evaluate` the generator of a checkpoint.  Metrics and extractors of
features have names in the tables here, or are the user's own, MODULE:OBJECT; they are loaded when they are asked for.
"""

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from pggan.core.errors import UserError, nearest
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics.images import Collector, FakeImages, Images, RankPartition, RealImages, RowCollector, feed
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

FIRST_SEED = 10_000  # of the fakes

C = TypeVar("C", bound=Collector)


def find(key: str, name: str, known: Mapping[str, str]) -> Any:
    """The object that `name` stands for in `known`, or at MODULE:OBJECT; raises UserError where there is none."""
    place = known.get(name, name)
    if ":" not in place:
        raise UserError(f"There is no {key}={name}.", nearest(name, [*known, "MODULE:OBJECT"]))
    if name not in known and "" not in sys.path:  # the working directory, where a user's own module may be
        sys.path.insert(0, "")
    try:
        return resolve_name(place)
    except (ImportError, AttributeError, ValueError) as error:
        remedy = "Write MODULE:OBJECT, of a module that Python can import."
        raise UserError(f"{key}={name} can't be loaded: {error}.", remedy) from error


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
    """The images of one evaluation, fakes beside reals at one resolution, and what its metrics share."""

    fakes: Images
    reals: RealImages
    partition: RankPartition
    extractor: Any  # of features, where a metric uses one
    known: dict[Any, Any] = field(default_factory=dict)  # of the reals, kept from one evaluation to the next
    collectors: dict[Any, Any] = field(default_factory=dict)  # that have to see the fakes

    def shown_reals(self, collector: C, first: int = 0) -> C:
        """The collector after it has seen the reals from number `first` on.  Called by all ranks."""
        reals = RealImages(self.reals.pyramid, self.reals.resolution, first)
        feed(reals, [collector], self.partition, "Looking at reals")
        return collector

    def once(self, what: tuple[Any, ...], calculate: Callable[[], Any]) -> Any:
        """Numbers of the reals at this resolution, from an earlier evaluation or calculated by all ranks."""
        key = (self.reals.resolution, *what)
        if key not in self.known:
            self.known[key] = calculate()
        return self.known[key]

    def of_fakes(self, calculate: Callable[[Tensor], Tensor], count: int) -> RowCollector:
        """The collector of what `calculate` makes of at least `count` fakes, one for all metrics that ask for it."""
        found: RowCollector = self.collectors.setdefault(calculate, RowCollector(calculate, 0, self.partition))
        found.count = max(found.count, count)
        return found

    def of_reals(self, calculate: Callable[[Tensor], Tensor], count: int) -> Tensor:
        """The rows that `calculate` makes of the first `count` reals.  Called by all ranks."""
        collector = RowCollector(calculate, count, self.partition)
        found: Tensor = self.once((calculate, count), lambda: self.shown_reals(collector).rows())
        return found

    def precise(self, *values: Tensor) -> list[Tensor]:
        """The values where float64 can be calculated: on CUDA, else on the CPU."""
        device = self.partition.group.device
        return [one.to(device if device.type == "cuda" else "cpu") for one in values]


class Metric(ABC):
    """One metric: it gives the task its collectors, and has its numbers when they have seen the fakes."""

    paper_images: ClassVar[int]  # that the paper compares, on each side
    least_images: ClassVar[int]
    least_resolution: ClassVar[int] = 4  # below, there is no such number
    takes_more_fakes: ClassVar[bool] = False  # than there are reals, where the user asks for so many
    uses_extractor: ClassVar[bool] = False
    decides: ClassVar[str | None] = None  # the number, without features and count, whose lowest is the best, if any

    def __init__(self, task: Task, count: int) -> None:
        self.task, self.count = task, count

    @abstractmethod
    def values(self) -> dict[str, float]:
        """The numbers by name, on rank 0.  Called by all ranks, when the fakes have been shown."""

    def pictures(self) -> dict[str, Pixels]:
        """Pictures by file name without ending, after the numbers.  Called by rank 0."""
        return {}


@dataclass(frozen=True)
class Evaluation:
    """The results of an evaluation; pictures on rank 0 only."""

    values: dict[str, float]  # by names that carry extractor and count
    notes: list[str]  # about the numbers
    pictures: dict[str, Pixels]  # by file name without ending


class Evaluator:
    """Metrics by name, with the extractor that they need; the numbers of the reals are kept for the next evaluation."""

    def __init__(
        self,
        names: Sequence[str],
        extractor: str,
        device: torch.device,
        count: int | None = None,
    ) -> None:
        """Args: count: images on each side, None for the count of each paper.

        Raises UserError for unknown names, and where weights or packages are missing.
        """
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
        first_seed: int = FIRST_SEED,
        group: ProcessGroup,
        shows_progress: bool = False,
    ) -> Evaluation:
        """The numbers of all metrics; all ranks call it, and each draws and reads its share.

        Args: settings: of the fakes; reals have the same resolution and are not faded; pyramid: the same in all calls;
        first_seed: seed of the first fake, the others follow; shows_progress: on a terminal.
        Raises UserError, before anything is drawn, for too few images.
        """
        side = settings.resolution
        partition, reals = RankPartition.at(side, group, shows_progress=shows_progress), RealImages(pyramid, side)
        fakes = FakeImages(network, settings, reals, first_seed)
        task = Task(fakes, reals, partition, self.extractor, self.known)
        found = [
            metric(task, images_compared(name, metric, self.count, pyramid))
            for name, metric in self.metrics.items()
            if side >= metric.least_resolution
        ]
        if not found:
            problem = f"metrics=[{','.join(self.metrics)}] has no number at {side}x{side}."
            raise UserError(problem, "Choose other metrics=, or another resolution=.")
        feed(fakes, [*task.collectors.values()], partition, "Drawing fakes")  # once for all metrics
        values = group.broadcast_object({name: value for one in found for name, value in one.values().items()})
        pictures = {name: picture for one in found if group.is_main for name, picture in one.pictures().items()}
        notes, looked_at = list[str](), (network.architecture.features or "").partition("@")[0]
        if self.extractor is not None and looked_at == self.extractor.name:
            notes = [f"D looked at features of {looked_at} in training, so metrics by them are too good."]
        return Evaluation(values, notes, pictures)


def images_compared(name: str, metric: type[Metric], count: int | None, pyramid: ImagePyramid) -> int:
    """How many images a metric compares: `count`, or as many as the paper, and no more than there are reals.

    Raises UserError where these are too few.
    """
    compared = min(count or metric.paper_images, pyramid.images)
    if compared < metric.least_images:
        problem = f"metrics={name} needs at least {metric.least_images} images; there are {compared}."
        raise UserError(problem, "Raise count=, give more data, or leave this metric out.")
    return count if count is not None and metric.takes_more_fakes else compared
