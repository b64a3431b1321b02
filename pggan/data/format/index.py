"""The index of a dataset: what index.json holds, and the checks that make a foreign one safe to use."""

import json
import re
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pggan.core.architecture import SMALLEST_RESOLUTION, is_power_of_two, resolutions_between
from pggan.core.errors import UserError

FORMAT = "pggan-pyramid"
VERSION = 1
LABEL_BYTES = 8

Kind = TypeVar("Kind")


def is_resolution(side: int) -> bool:
    """Whether images of this side can be the top of a pyramid: a power of two from 4 up."""
    return side >= SMALLEST_RESOLUTION and is_power_of_two(side)


def check_resolution(resolution: int) -> None:
    """Raise a UserError unless `resolution` is a power of two from 4 up."""
    if not is_resolution(resolution):
        raise UserError(
            f"A resolution of {resolution} is not a power of two from {SMALLEST_RESOLUTION} up.",
            "Choose one of 4, 8, 16, 32, 64, 128, 256, 512, 1024, ….",
        )


def levels_up_to(resolution: int) -> tuple[int, ...]:
    """The resolutions of a pyramid, 4 first and `resolution` last."""
    return resolutions_between(SMALLEST_RESOLUTION, resolution)


@dataclass(frozen=True)
class StoredFile:
    """One file of a dataset, as the index describes it."""

    file: str
    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """What index.json says.  `labels` names the classes; `levels` lists the shards of each resolution."""

    images: int
    channels: int
    resolution: int
    labels: list[str] | None
    labels_file: StoredFile | None
    levels: dict[int, list[StoredFile]]
    source: dict[str, Any]

    def to_json(self) -> bytes:
        """The content of index.json."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(content, indent=1).encode() + b"\n"

    @property
    def files(self) -> list[StoredFile]:
        """Every file of the dataset but the index itself."""
        shards = [shard for level in self.levels.values() for shard in level]
        return shards if self.labels_file is None else [*shards, self.labels_file]


def parse_index(content: bytes) -> Index:
    """The index in the bytes of an index.json, checked throughout because those may come from anywhere.

    Raises ValueError with what is wrong, and UserError for a dataset from a newer version of this package.
    """
    try:
        raw = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if _field(raw, "format", str) != FORMAT:
        raise ValueError(f"its format is not '{FORMAT}'")
    if (version := _field(raw, "version", int)) > VERSION:
        raise UserError(
            f"The dataset has format version {version}; this pggan reads up to version {VERSION}.",
            "Upgrade it: pip install --upgrade pggan",
        )
    images, channels, resolution = (_field(raw, name, int) for name in ("images", "channels", "resolution"))
    if images < 1 or channels not in (1, 3, 4) or not is_resolution(resolution):
        raise ValueError(f"{images} images of {channels} channels and side {resolution} are not possible")
    labels = _parse_labels(raw)
    labels_file = None if labels is None else _parse_file(raw.get("labels_file"), LABEL_BYTES)
    if labels_file and labels_file.images != images:
        raise ValueError(f"'labels_file' does not hold {images} labels")
    levels = {level: _parse_level(raw, level, images, channels) for level in levels_up_to(resolution)}
    return Index(images, channels, resolution, labels, labels_file, levels, _field(raw, "source", dict))


def _parse_labels(raw: dict[str, Any]) -> list[str] | None:
    labels = raw.get("labels")
    if labels is None or (isinstance(labels, list) and all(isinstance(name, str) for name in labels)):
        return labels
    raise ValueError("'labels' is not a list of names")


def _parse_level(raw: object, level: int, images: int, channels: int) -> list[StoredFile]:
    raw_shards = _field(_field(raw, "levels", dict), str(level), list)
    shards = [_parse_file(shard, level * level * channels) for shard in raw_shards]
    if sum(shard.images for shard in shards) != images:
        raise ValueError(f"level {level} does not hold {images} images")
    return shards


def _parse_file(raw: object, bytes_per_image: int) -> StoredFile:
    name, digest = _field(raw, "file", str), _field(raw, "sha256", str)
    images, size = _field(raw, "images", int), _field(raw, "bytes", int)
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise ValueError(f"{name!r} is not a plain file name")
    if images < 1 or size != images * bytes_per_image:
        raise ValueError(f"{name} cannot hold {images} images in {size} bytes")
    return StoredFile(name, images, size, digest)


def _field(holder: object, name: str, kind: type[Kind]) -> Kind:
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"'{name}' is missing or not of type {kind.__name__}")
    return value
