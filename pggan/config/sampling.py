"""Keys of `pggan sample`, `project` and `directions`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pggan.config.parse import NEWEST, require_checkpoint
from pggan.core.errors import UserError
from pggan.core.validation import require, require_bounds

DirectionMethod = StrEnum("DirectionMethod", "weights activations sets")  # how directions are found


@dataclass(frozen=True, kw_only=True)
class DrawConfig:
    """Keys of every command that draws images: a generator, its stage and its class."""

    run: str
    checkpoint: Any = NEWEST
    resolution: int | None
    alpha: float | None
    label: Any
    device: str
    threads: int | None = None

    def __post_init__(self) -> None:
        require_checkpoint(self.checkpoint)
        require_bounds(self, threads=">=1")
        numbered = isinstance(self.label, int) and not isinstance(self.label, bool)
        require(self.label is None or numbered or isinstance(self.label, str), "label", self.label, "a class")


@dataclass(frozen=True, kw_only=True)
class SampleConfig(DrawConfig):
    """Images of a generator, or of several."""

    run: Any
    seeds: Any
    latents: Any
    direction: str | None
    strength: Any
    truncation: float
    grid: str | None
    zoom: int | None
    captions: bool
    out: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bounds(self, zoom=">=1", truncation="")
        if self.seeds is not None and self.latents is not None:
            raise UserError("seeds= and latents= both say what to draw.", "Leave out one of them.")
        several = len(listed(self.run)) > 1
        if several and len(listed(self.strength)) > 1:
            raise UserError(
                "Columns are the strengths, or the seeds of several runs.", "Give one run, or one strength."
            )
        if self.grid is not None and (several or len(listed(self.strength)) > 1):
            raise UserError("grid= has no say where rows and columns have a meaning.", "Leave it out.")
        for strength in listed(self.strength):
            number = isinstance(strength, int | float) and not isinstance(strength, bool)
            require(number, "strength", self.strength, "a number, or several such as [-3,0,3]")


@dataclass(frozen=True, kw_only=True)
class ProjectConfig(DrawConfig):
    """The latents of given images."""

    image: Any
    steps: int
    starts: int
    candidates: int
    learning_rate: float
    noise: float
    distance: str
    seed: int
    out: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bounds(self, steps=">=1", starts=">=1", candidates=">=1", learning_rate=">0", noise=">=0")
        require(self.starts <= self.candidates, "starts", self.starts, f"at most candidates={self.candidates}")


@dataclass(frozen=True, kw_only=True)
class DirectionsConfig(DrawConfig):
    """Directions in the space of latents along which images change."""

    method: DirectionMethod
    positive: Any
    negative: Any
    count: int
    seeds: Any
    strength: float
    out: str | None

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bounds(self, count=">=1", strength=">0")
        sets, wanted = (self.positive, self.negative), self.method is DirectionMethod.sets
        if wanted and None in sets:
            remedy = "Give positive= and negative=: seeds, or files of latents."
            raise UserError("method=sets takes the direction from one set of latents to another.", remedy)
        if not wanted and sets != (None, None):
            raise UserError(f"method={self.method.value} looks at no sets of latents.", "Add method=sets.")


def listed(value: Any) -> list[Any]:
    """A value that may be one or several, as a list."""
    return list(value) if isinstance(value, list) else [value]
