"""Keys of the commands that look at a run or at data."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pggan.core.validation import require_bounds


class InterpolationPath(Enum):
    """How an interpolation gets from one latent to the next."""

    slerp = "slerp"
    lerp = "lerp"
    loop = "loop"
    walk = "walk"


@dataclass(frozen=True, kw_only=True)
class DrawConfig:
    """Which generator rng which faces, and where they go."""

    run: str
    seeds: Any
    resolution: int | None
    alpha: float | None
    truncation: float
    label: int | None
    grid: str | None
    zoom: int
    out: str
    device: str

    def __post_init__(self) -> None:
        require_bounds(self, zoom=">=1", truncation="")


@dataclass(frozen=True, kw_only=True)
class SampleConfig(DrawConfig):
    """Images from a generator."""


@dataclass(frozen=True, kw_only=True)
class InterpolateConfig(DrawConfig):
    """Images between latents."""

    path: InterpolationPath
    frames: int
    fps: int
    smoothness: float

    def __post_init__(self) -> None:
        super().__post_init__()
        require_bounds(self, frames=">=2", fps=">=1", smoothness=">=0")


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """A run or a data set as a table."""

    run: str | None
    data: str | None
    json: bool
    sheet: str | None
    verify: bool
