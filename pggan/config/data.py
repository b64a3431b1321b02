"""Keys of the training images, and of `pggan prepare`."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pggan.core.validation import require, require_bounds

Crop = StrEnum("Crop", "center resize pad")  # how an image becomes square
PrepareCrop = StrEnum("PrepareCrop", "center resize pad face")  # … where landmarks of faces can be given, too
OnBad = StrEnum("OnBad", "report stop")  # what to do about files that can't be used


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """The training images."""

    path: str | None
    style: str
    count: int
    cache: str
    crop: Crop
    channels: int | None
    labels: bool
    mirror: bool
    verify: bool
    device_budget_mib: int | None

    def __post_init__(self) -> None:
        require_bounds(self, "data.", count=">=1", device_budget_mib=">=0")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Keys of `pggan prepare`: images to a pyramid."""

    source: Any
    dest: str | None
    max_resolution: int | None
    crop: PrepareCrop
    keep: float
    landmarks: str | None
    channels: int | None
    labels: Any
    on_bad: OnBad
    check: bool
    report: str | None
    num_workers: int | None
    root: str
    split: str
    download: bool

    def __post_init__(self) -> None:
        require_bounds(self, keep=">0 <=1", num_workers=">=1")
        require(isinstance(self.labels, bool | str), "labels", self.labels, "true, false or the path of a file")
