"""The index of a dataset: what index.json holds, and the checks that make a foreign one safe to use."""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from pggan.core.architecture import MIN_RESOLUTION, is_power_of_two, resolutions_between
from pggan.core.atomic_io import parse_json
from pggan.core.errors import UserError

FORMAT = "pggan-pyramid"
VERSION = 1
LABEL_BYTES = 8

Kind = TypeVar("Kind")


def levels_up_to(resolution: int) -> tuple[int, ...]:
    """The resolutions of a pyramid, 4 first and `resolution` last."""
    return resolutions_between(MIN_RESOLUTION, resolution)


@dataclass(frozen=True)
class StoredFile:
    """One file of a dataset, as the index describes it."""

    file: str
    images: int
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Index:
    """The content of index.json.  `levels` lists the shards of each resolution."""

    images: int
    channels: int
    resolution: int
    class_names: list[str] | None  # None: without labels
    labels_file: StoredFile | None
    levels: dict[int, list[StoredFile]]
    source: dict[str, Any]

    def to_json(self) -> bytes:
        """The content of index.json."""
        return json.dumps({"format": FORMAT, "version": VERSION, **asdict(self)}, indent=1).encode() + b"\n"

    def files(self, levels: Iterable[int]) -> list[StoredFile]:
        """The shards of these levels, and the labels."""
        shards = [shard for level in levels for shard in self.levels[level]]
        return shards if self.labels_file is None else [*shards, self.labels_file]


def parse_index(content: bytes) -> Index:
    """The index in the bytes of an index.json, checked throughout because they are untrusted.

    Raises ValueError with what is wrong, and UserError for a dataset from a newer version of this package.
    """
    raw = parse_json(content)
    if _field(raw, "format", str) != FORMAT:
        raise ValueError(f"its format is not '{FORMAT}'")
    if (version := _field(raw, "version", int)) > VERSION:
        raise UserError(
            f"The dataset has format version {version}; this pggan reads up to version {VERSION}.",
            "Upgrade it: pip install --upgrade pggan",
        )
    images, channels, resolution = (_field(raw, name, int) for name in ("images", "channels", "resolution"))
    possible = resolution >= MIN_RESOLUTION and is_power_of_two(resolution)
    if images < 1 or channels not in (1, 3, 4) or not possible:
        raise ValueError(f"{images} images of {channels} channels and side {resolution} are not possible")
    names = raw.get("class_names")
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError("'class_names' is not a list of names")
    labels_file = None if names is None else _parse_files([raw.get("labels_file")], images, LABEL_BYTES)[0]
    shards = _field(raw, "levels", dict)
    levels = {
        level: _parse_files(_field(shards, str(level), list), images, level * level * channels)
        for level in levels_up_to(resolution)
    }
    return Index(images, channels, resolution, names, labels_file, levels, _field(raw, "source", dict))


def _parse_files(raw: list[object], images: int, image_bytes: int) -> list[StoredFile]:
    """The files of one kind, which hold `images` images or labels together."""
    files = []
    for entry in raw:
        name, digest = _field(entry, "file", str), _field(entry, "sha256", str)
        held, size = _field(entry, "images", int), _field(entry, "bytes", int)
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
            raise ValueError(f"{name!r} is not a plain file name")
        if held < 1 or size != held * image_bytes:
            raise ValueError(f"{name} cannot hold {held} images in {size} bytes")
        files.append(StoredFile(name, held, size, digest))
    if sum(file.images for file in files) != images:
        raise ValueError(f"{', '.join(file.file for file in files)} do not hold {images} images")
    return files


def _field(holder: object, name: str, kind: type[Kind]) -> Kind:
    value = holder.get(name) if isinstance(holder, dict) else None
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"'{name}' is missing or not of type {kind.__name__}")
    return value
