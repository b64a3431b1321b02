"""Keys about images."""

from dataclasses import dataclass
from enum import Enum
from typing import Any

from pggan.core.validation import require


class Crop(Enum):
    """How an image that is not square becomes square."""

    center = "center"
    resize = "resize"
    pad = "pad"
    face = "face"


class OnBad(Enum):
    """What to do about files that can't be used."""

    report = "report"
    stop = "stop"


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """What to train on."""

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
        require(self.count >= 1, "data.count", self.count, "at least 1")
        budget = self.device_budget_mib
        require(budget is None or budget >= 0, "data.device_budget_mib", budget, "at least 0, or null")


@dataclass(frozen=True, kw_only=True)
class PrepareConfig:
    """Images to a pyramid."""

    source: Any
    dest: str | None
    max_resolution: int | None
    crop: Crop
    keep: float
    landmarks: str | None
    channels: int | None
    labels: Any
    on_bad: OnBad
    check: bool
    report: str | None
    workers: int | None
    root: str
    split: str
    download: bool

    def __post_init__(self) -> None:
        require(0 < self.keep <= 1, "keep", self.keep, "more than 0 and at most 1")
        require(isinstance(self.labels, bool | str), "labels", self.labels, "true, false or the path of a file")
        require(self.workers is None or self.workers >= 1, "workers", self.workers, "at least 1, or null")
