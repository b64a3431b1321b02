"""Keys of the commands that take a generator."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, get_args

from pggan.config.parse import Checkpoint
from pggan.config.validation import Count, Positive, Whole
from pggan.core.errors import UserError, nearest, require

MetricName = Literal["swd", "ms_ssim", "kid", "fid", "precision_recall", "neighbours"]
METRICS = get_args(MetricName)
EXTRACTORS = ("efficientnet-lite0", "inception", "pixels")  # besides MODULE:FUNCTION
ALL = "all"  # as checkpoint= of evaluate

InterpolationPath = StrEnum("InterpolationPath", "slerp lerp loop walk")  # from one latent to the next
ExportFormat = StrEnum("ExportFormat", "safetensors onnx hf web")


@dataclass(frozen=True, kw_only=True)
class DrawConfig:
    """Keys of every command that draws images: a generator, its stage and its class."""

    run: str
    checkpoint: Checkpoint
    resolution: int | None
    alpha: float | None
    label: int | str | None
    device: str
    threads: Count | None


@dataclass(frozen=True, kw_only=True)
class SampleConfig(DrawConfig):
    """Images of a generator."""

    seeds: Any
    latents: Any
    direction: str | None
    strength: list[int | float]
    truncation: float
    grid: str | None
    zoom: Count | None
    out: str | None

    def __post_init__(self) -> None:
        require_one_of(self.seeds, self.latents)
        if self.grid is not None and len(self.strength) > 1:
            raise UserError("grid= has no say where columns are strengths.", "Leave it out.")


@dataclass(frozen=True, kw_only=True)
class InterpolateConfig(DrawConfig):
    """Images between latents."""

    seeds: Any
    latents: Any
    path: InterpolationPath
    frames: Annotated[int, ">=2"]
    fps: Count
    truncation: float
    grid: str | None
    zoom: Count | None
    out: str | None

    def __post_init__(self) -> None:
        require_one_of(self.seeds, self.latents)
        if self.path is InterpolationPath.walk and self.latents is not None:
            raise UserError("path=walk passes through no images of latents=.", "Leave out latents=.")


@dataclass(frozen=True, kw_only=True)
class TimelapseConfig:
    """A film of a whole training."""

    run: str
    seconds: Positive
    fps: Count
    zoom: Count | None
    out: str | None


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(DrawConfig):
    """The latents of given images."""

    image: Any
    steps: Count
    out: str | None


@dataclass(frozen=True, kw_only=True)
class DirectionsConfig(DrawConfig):
    """Directions in the space of latents along which images change."""

    count: Count
    seeds: Any
    strength: Positive
    out: str | None


@dataclass(frozen=True, kw_only=True)
class ExploreConfig:
    """A page in the browser."""

    run: str
    checkpoint: Checkpoint
    directions: str | None
    port: Annotated[int, ">=0 <=65535"] | None
    open: bool
    device: str
    threads: Count | None


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Images of a generator beside those of a data set."""

    run: str
    checkpoint: Checkpoint | Literal["all"]
    data: str | None
    metrics: list[MetricName]
    extractor: str
    weights: str | None
    count: Annotated[int, ">=2"] | None
    seed: Whole
    resolution: int | None
    alpha: float | None
    out: str | None
    json: bool
    device: str
    threads: Count | None

    def __post_init__(self) -> None:
        require(bool(self.metrics), "metrics", self.metrics, "a list of at least one, for example [swd,kid]")
        require_extractor("", self.extractor, self.weights)


@dataclass(frozen=True, kw_only=True)
class ExportConfig:
    """A generator for other programs."""

    run: str
    checkpoint: Checkpoint
    format: ExportFormat
    out: str
    resolution: int | None
    alpha: float | None
    license: str | None
    data_statement: str | None
    evaluation: str | None
    directions: str | None
    runtime: str | None

    def __post_init__(self) -> None:
        of_the_folder = ("license", "data_statement", "evaluation")
        given = [name for name in of_the_folder if getattr(self, name) is not None]
        if given and self.format is not ExportFormat.hf:
            raise UserError(f"{given[0]}= belongs to a model card.", "Add format=hf, or leave it out.")
        of_the_page = [name for name in ("directions", "runtime") if getattr(self, name) is not None]
        if of_the_page and self.format is not ExportFormat.web:
            raise UserError(f"{of_the_page[0]}= belongs to a page.", "Add format=web, or leave it out.")


def require_one_of(seeds: Any, latents: Any) -> None:
    """Raise UserError where both are given."""
    if seeds is not None and latents is not None:
        raise UserError("seeds= and latents= both say what to draw.", "Leave out one of them.")


def require_extractor(prefix: str, name: str, weights: str | None) -> None:
    """Raise UserError unless `name` can be an extractor, and takes `weights`.

    Args: prefix: of the keys in messages.
    """
    if name not in EXTRACTORS and not name.partition(":")[2]:
        raise UserError(f"There is no {prefix}extractor={name}.", nearest(name, [*EXTRACTORS, "MODULE:FUNCTION"]))
    if weights is not None and name != "inception":
        raise UserError(f"{prefix}extractor={name} takes no {prefix}weights=.", "Leave it out, or choose another one.")
