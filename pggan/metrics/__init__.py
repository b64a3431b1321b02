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
from torch import Tensor, nn

from pggan.core.errors import UserError, nearest
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics.images import Collector, FakeImages, Images, Progress, RankPartition, RealImages, RowCollector, feed
from pggan.networks.networks import Generator
from pggan.sampling.generate import RenderSettings
from pggan.sampling.images import Pixels
from pggan.training.precision import full_float32

METRICS = {
    "swd": "pggan.metrics.swd:SlicedWasserstein",
    "ms_ssim": "pggan.metrics.ms_ssim:MultiScaleSimilarity",
    "kid": "pggan.metrics.features:KernelInceptionDistance",
    "fid": "pggan.metrics.features:FrechetInceptionDistance",
    "precision_recall": "pggan.metrics.features:PrecisionRecall",
    "neighbours": "pggan.metrics.features:NearestNeighbours",
}
EXTRACTORS = {
    "efficientnet-lite0": "pggan.metrics.extractors:efficientnet_lite0",
    "inception": "pggan.metrics.extractors:inception",
    "pixels": "pggan.metrics.extractors:pixels",
}
CHUNK = 32  # images in one forward pass of an extractor

T = TypeVar("T")
C = TypeVar("C", bound=Collector)


def find(key: str, name: str, known: Mapping[str, str]) -> Any:
    """The object that `name` stands for in `known`, or at MODULE:OBJECT; raises UserError where there is none."""
    place = known.get(name, name)
    if ":" not in place:
        raise UserError(f"There is no {key}={name}.", nearest(name, [*known, "MODULE:OBJECT"]))
    if "" not in sys.path:
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


@dataclass(frozen=True)
class Extractor:
    """A feature extractor; `name` is what metrics carry.

    Grey images are repeated to three channels; of images with four, the first three are taken.  Whatever precision
    training has, features are calculated in float32.
    """

    name: str
    network: Callable[[Tensor], Tensor]  # uint8 [N, 3, R, R] -> [N, F]
    weights: str = ""  # the SHA-256 of their file

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Features float32 [N, F], in host memory, of images uint8 [N, C, R, R].

        Raises UserError where the network gives anything but rows of finite numbers.
        """
        colour = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        with full_float32():
            features = torch.cat([self.network(chunk) for chunk in torch.split(colour, CHUNK)]).float().cpu()
        if features.ndim != 2 or not features.isfinite().all():
            problem = f"Extractor {self.name} gives {list(features.shape)}, or numbers that are NaN or infinite."
            raise UserError(problem, "It has to give [N, F], all finite: look at its network and weights.")
        return features


def load_extractor(name: str, weights: str | None, device: torch.device, prefix: str = "") -> Extractor:
    """The extractor `name`, with the `weights` of a file where it takes some, on `device`.

    Args: prefix: of the keys in messages.
    Raises UserError for a name that is unknown, and where weights or packages are missing.
    """
    make = find(f"{prefix}extractor", name, EXTRACTORS)
    if weights is not None and name != "inception":
        raise UserError(f"{prefix}extractor={name} takes no weights=.", "Leave it out, or choose another one.")
    made = make() if weights is None else make(weights)
    extractor = made if isinstance(made, Extractor) else Extractor(name.replace(":", "."), made)
    if isinstance(extractor.network, nn.Module):
        extractor.network.requires_grad_(False).train(False).to(device)
    return extractor


@dataclass
class Task:
    """The images of one evaluation, fakes beside reals at one resolution, and the features that its metrics share."""

    fakes: Images
    reals: RealImages
    partition: RankPartition
    extractor: Extractor | None
    progress: Progress
    mirror: bool = False  # whether training mirrors images at random
    known: dict[Any, Any] = field(default_factory=dict)  # of the reals, kept from one evaluation to the next
    collectors: dict[Any, Any] = field(default_factory=dict)  # that have to see the fakes

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

    def rows(self, extractor: Extractor, count: int, *, mirrored: bool = False) -> RowCollector:
        """A collector of features float32 [count, F] of images, or of the images mirrored."""
        shown = (lambda images: extractor.features(images.flip(-1))) if mirrored else extractor.features
        return RowCollector(shown, count, self.partition)

    def features(self, extractor: Extractor, count: int, *, mirrored: bool = False) -> RowCollector:
        """The collector of features of at least so many fakes, which all metrics share."""
        key = extractor.name, mirrored
        collector: RowCollector = self.collectors.setdefault(key, self.rows(extractor, 0, mirrored=mirrored))
        collector.count = max(collector.count, count)
        return collector

    def real_features(self, extractor: Extractor, count: int, *, mirrored: bool = False) -> Tensor:
        """The features float32 [count, F] of the first reals.  Called by all ranks."""
        key = "features", extractor.name, mirrored, count
        return self.once(key, lambda: self.shown_reals(self.rows(extractor, count, mirrored=mirrored)).rows())

    def shown_reals(self, collector: C, first: int = 0) -> C:
        """The collector after it has seen the reals from number `first` on.  Called by all ranks."""
        reals = RealImages(self.reals.pyramid, self.resolution, first)
        feed(reals, [collector], self.partition, "looking at reals", self.progress)
        return collector

    def once(self, what: tuple[Any, ...], calculate: Callable[[], T]) -> T:
        """Numbers of the reals at this resolution, from an earlier evaluation or calculated by all ranks."""
        key = (self.resolution, *what)
        if key not in self.known:
            self.known[key] = calculate()
        found: T = self.known[key]
        return found


class Metric(ABC):
    """One metric: it gives the task its collectors, and has its numbers when they have seen the fakes."""

    paper_images: ClassVar[int]  # that the paper compares, on each side
    least_images: ClassVar[int]
    least_resolution: ClassVar[int] = 4  # below, there is no such number
    takes_more_fakes: ClassVar[bool] = False  # than there are reals, where the user asks for so many
    uses_extractor: ClassVar[bool] = True
    decides: ClassVar[str | None] = None  # the number, without features and count, whose lowest is the best, if any

    def __init__(self, task: Task, count: int) -> None:
        self.task, self.count = task, count

    @property
    def extractor(self) -> Extractor:
        """The extractor of the evaluation."""
        assert self.task.extractor is not None, "an evaluation with this metric loads one"
        return self.task.extractor

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
        *,
        count: int | None = None,
        weights: str | None = None,
        prefix: str = "",
    ) -> None:
        """Args: count: images on each side, None for the count of each paper; prefix: of the keys in messages.

        Raises UserError for unknown names, counts that are too small, and where weights or packages are missing.
        """
        self.count, self.known = count, dict[Any, Any]()
        self.metrics: dict[str, type[Metric]] = {name: find(f"{prefix}metrics", name, METRICS) for name in names}
        for name, metric in self.metrics.items():
            if count is not None and count < metric.least_images:
                problem = f"{prefix}metrics={name} needs at least {metric.least_images} images; {prefix}count={count}."
                raise UserError(problem, f"Raise {prefix}count=, or leave this metric out.")
        needed = any(metric.uses_extractor for metric in self.metrics.values())
        self.extractor = load_extractor(extractor, weights, device, prefix) if needed else None

    def evaluate(
        self,
        network: Generator,
        settings: RenderSettings,
        pyramid: ImagePyramid,
        *,
        first_seed: int,
        group: ProcessGroup,
        mirror: bool = False,
        progress: Progress = lambda what, done, blocks: None,
    ) -> Evaluation:
        """The numbers of all metrics; all ranks call it, and each draws and reads its share.

        Args: settings: of the fakes; reals have the same resolution and are not faded; pyramid: the same in all calls;
        first_seed: seed of the first fake, the others follow; mirror: whether training mirrors images at random;
        progress: called on every rank.
        Raises UserError, before anything is drawn, for too few images and for channels that differ.
        """
        a, side = network.architecture, settings.resolution
        if a.channels != pyramid.channels:
            problem = f"The generator draws images of {a.channels} channels; {pyramid.path} has {pyramid.channels}."
            raise UserError(problem, "Give data= the images that it was trained with, or like them.")
        partition, reals = RankPartition.at(side, group), RealImages(pyramid, side)
        fakes = FakeImages(network, settings, reals, first_seed)
        task = Task(fakes, reals, partition, self.extractor, progress, mirror, self.known)
        found = [
            metric(task, images_compared(name, metric, self.count, pyramid))
            for name, metric in self.metrics.items()
            if side >= metric.least_resolution
        ]
        if not found:
            problem = f"metrics=[{','.join(self.metrics)}] has no number at {side}x{side}."
            raise UserError(problem, "Choose other metrics=, or another resolution=.")
        feed(fakes, [*task.collectors.values()], partition, "drawing fakes", progress)  # once for all metrics
        values = group.broadcast_object({name: value for one in found for name, value in one.values().items()})
        pictures = {name: picture for one in found if group.is_main for name, picture in one.pictures().items()}
        notes, digest = list[str](), (a.features or "").partition("@")[2]  # of the weights of what D looked at
        if self.extractor is not None and digest and self.extractor.weights.startswith(digest):
            notes = [f"D looked at features of {self.extractor.name} in training, so metrics by them are too good."]
        return Evaluation(values, notes, pictures)


def images_compared(name: str, metric: type[Metric], count: int | None, pyramid: ImagePyramid) -> int:
    """How many images a metric compares: `count`, or as many as the paper, and no more than there are reals.

    Raises UserError where the reals are too few.
    """
    if pyramid.images < metric.least_images:
        problem = f"metrics={name} needs at least {metric.least_images} images; {pyramid.path} has {pyramid.images}."
        raise UserError(problem, "Give more data, or leave this metric out.")
    more = count is not None and metric.takes_more_fakes
    return (count or metric.paper_images) if more else min(count or metric.paper_images, pyramid.images)
