"""Keys of the commands that look at a run or at data."""

from dataclasses import dataclass
from enum import Enum
from math import inf, isfinite
from typing import Any

from pggan.core.validation import require


class InterpolationPath(Enum):
    """How an interpolation gets from one latent to the next."""

    slerp = "slerp"
    lerp = "lerp"
    loop = "loop"
    walk = "walk"


@dataclass(frozen=True, kw_only=True)
class DrawConfig:
    """Which generator draws which faces, and where they go."""

    run: str
    seeds: Any
    resolution: int | None
    alpha: float | None
    truncation: float
    label: int | None
    grid: str | None
    zoom: int
    out: str
    devices: str

    def __post_init__(self) -> None:
        require(self.zoom >= 1, "zoom", self.zoom, "at least 1")
        require(isfinite(self.truncation), "truncation", self.truncation, "a number, 1 for none")


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
        require(self.frames >= 2, "frames", self.frames, "at least 2")
        require(self.fps >= 1, "fps", self.fps, "at least 1")
        require(0 <= self.smoothness < inf, "smoothness", self.smoothness, "at least 0, below infinity")


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """A run or a data set as a table."""

    run: str | None
    data: str | None
    json: bool
    sheet: str | None
    verify: bool
