"""What is known of every file a dataset was made from, so that an unchanged one is never decoded again.

files.jsonl.gz lies in a dataset beside its index: a line about the whole, then one per file.  Without it, or when it
belongs to another index, everything is decoded again: it is worth time, never correctness.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.data.format.index import parse_index
from pggan.data.format.layout import Layout, layout_of, new_layout
from pggan.data.format.pyramid import INDEX_FILE, ImagePyramid
from pggan.data.sources.image_file import ImageHeader

RECORDS_FILES = "files*.jsonl.gz"  # * is the generation
JOURNAL_FILE = "done.jsonl"
FORMAT = "pggan-files"
VERSION = 1
FILLED = -1  # in the journal: no place is empty any more
NOT_READABLE = (OSError, ValueError, TypeError, KeyError, EOFError, UserError)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the pixels of a dataset depend on besides the files: pixels made by the same recipe can be taken over."""

    resolution: int
    channels: int
    crop: str
    keep: float
    landmarks: str | None  # a digest of them


class About(NamedTuple):
    """How a dataset was made: its recipe, the digest of its plan, and a part that all its file names have."""

    recipe: Recipe
    plan: str
    generation: str


class Record(NamedTuple):
    """One file of a source: its header or why it has none, and the place of its image, if it got one."""

    name: str
    stamp: str
    header: ImageHeader | None
    notes: list[str]
    unreadable: str | None  # by its header
    undecodable: str | None = None  # by its pixels
    slot: int | None = None
    label: int | None = None


@dataclass(frozen=True)
class ExistingDataset:
    """A dataset, or what an interrupted preparation left of one, whose images can be taken over.

    done: the places that are filled; None for all.
    """

    directory: Path
    about: About
    records: dict[str, Record]
    layout: Layout
    done: frozenset[int] | None

    def slot_of(self, name: str, stamp: str) -> int | None:
        """The place of the image of a file, if it is there and the file has not changed."""
        record = self.known(name, stamp)
        if record is None or record.slot is None:
            return None
        return record.slot if self.done is None or record.slot in self.done else None

    def known(self, name: str, stamp: str) -> Record | None:
        """The record of a file, if it has not changed."""
        record = self.records.get(name)
        return record if record is not None and record.stamp == stamp else None


def plan_digest(recipe: Recipe, records: Iterable[Record], classes: list[str] | None) -> str:
    """Equal for two preparations exactly when they make the same dataset."""
    digest = sha256(json.dumps([asdict(recipe), classes]).encode())
    for record in records:
        digest.update(json.dumps([record.name, record.stamp, record.label]).encode())
    return digest.hexdigest()


def write_records(directory: Path, about: About, records: Iterable[Record], index: bytes | None) -> None:
    """Write what is known of the files; `index`: the content of the index that it belongs to, if there is one."""
    first = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": asdict(about.recipe),
        "plan": about.plan,
        "generation": about.generation,
        "index": None if index is None else sha256(index).hexdigest(),
    }
    path = directory / RECORDS_FILES.replace("*", about.generation)
    with atomic_write(path) as temporary, gzip.open(temporary, "wt", 6, encoding="utf-8") as file:
        file.write(json.dumps(first) + "\n")
        for record in records:
            file.write(json.dumps(record) + "\n")


def records_of(index: bytes, *directories: Path) -> tuple[About, dict[str, Record]]:
    """The records in one of these directories that belong to an index.  Raises ValueError if there are none."""
    for path in [path for directory in directories for path in directory.glob(RECORDS_FILES)]:
        about, of_index, records = _read_records(path)
        if of_index == sha256(index).hexdigest():
            return about, records
    raise ValueError("no records of this index")


def existing_dataset(directory: Path) -> ExistingDataset | None:
    """The dataset at `directory`, with what is known of its files; None if nothing is, or it is damaged."""
    try:
        index = (directory / INDEX_FILE).read_bytes()
        about, records = records_of(index, directory)
        ImagePyramid(directory)  # its files are there
        return ExistingDataset(directory, about, records, layout_of(directory, parse_index(index)), None)
    except NOT_READABLE:
        return None


def interrupted_dataset(directory: Path) -> ExistingDataset | None:
    """What an interrupted preparation left at `directory`; None if no image of it can be taken over."""
    try:
        (path,) = directory.glob(RECORDS_FILES)
        about, _, records = _read_records(path)
        images = sum(record.slot is not None for record in records.values())
        layout = new_layout(directory, about.recipe.resolution, about.recipe.channels, images, about.generation)
        journal = dict(read_journal(directory))
        if FILLED in journal:  # images have left their places
            return None
        done = frozenset(slot for slot, bad in journal.items() if bad is None)
        return ExistingDataset(directory, about, records, layout, done)
    except NOT_READABLE:
        return None


def read_journal(directory: Path) -> Iterator[tuple[int, str | None]]:
    """The places that an interrupted preparation had done, each with why there is no image, if there is none."""
    try:
        lines = (directory / JOURNAL_FILE).read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        with suppress(ValueError):  # of a line that was cut off while it was written
            slot, bad = json.loads(line)
            yield int(slot), bad


def _read_records(path: Path) -> tuple[About, str | None, dict[str, Record]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        about: dict[str, Any] = json.loads(file.readline())
        if about["format"] != FORMAT or about["version"] != VERSION:
            raise ValueError("another format")
        records = {}
        for line in file:
            record = Record(*json.loads(line))
            header = None if record.header is None else ImageHeader(*record.header)
            records[record.name] = record._replace(header=header)
        return About(Recipe(**about["recipe"]), about["plan"], about["generation"]), about["index"], records
