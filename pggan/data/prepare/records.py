"""What is known of every file a dataset was made from, so that an unchanged one is never decoded again.

files.jsonl.gz lies in a dataset beside its index: a line about the whole, then one per file.  Without it, or when it
belongs to another index, everything is decoded again: it is worth time, never correctness.
"""

import gzip
import json
from collections.abc import Iterable, Iterator
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

RECORDS_FILE = "files.jsonl.gz"
JOURNAL_FILE = "done.jsonl"
FORMAT = "pggan-files"
VERSION = 1
FILLED = -1  # in the journal: no place is empty any more


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the pixels of a dataset depend on besides the files: pixels made by the same recipe can be taken over."""

    resolution: int
    channels: int
    crop: str
    keep: float
    landmarks: str | None  # a digest of them


class About(NamedTuple):
    """What a dataset was made by: its recipe, the digest of its plan, and what its file names have in common."""

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
    undecodable: str | None  # by its pixels
    slot: int | None
    label: int | None = None


@dataclass(frozen=True)
class ExistingDataset:
    """A dataset, or what an interrupted preparation left of one, whose images can be taken over."""

    directory: Path
    about: About
    records: dict[str, Record]
    layout: Layout
    done: frozenset[int] | None  # places that are filled; None for all

    def slot_of(self, name: str, stamp: str) -> int | None:
        """The place of the image of a file, if it is there."""
        record = self.records.get(name)
        if record is None or record.stamp != stamp or record.slot is None:
            return None
        return record.slot if self.done is None or record.slot in self.done else None

    def known(self, name: str, stamp: str) -> Record | None:
        """What is known of a file, if it has not changed."""
        record = self.records.get(name)
        return record if record is not None and record.stamp == stamp else None


def plan_digest(recipe: Recipe, records: Iterable[Record], classes: list[str] | None) -> str:
    """Equal for two preparations exactly when they make the same dataset."""
    digest = sha256(json.dumps([asdict(recipe), classes]).encode())
    for record in records:
        digest.update(json.dumps([record.name, record.stamp, record.label]).encode())
    return digest.hexdigest()


def write_records(directory: Path, about: About, records: Iterable[Record], index: bytes | None) -> None:
    """Write what is known; `index`: the content of the index that it belongs to."""
    first = {
        "format": FORMAT,
        "version": VERSION,
        "recipe": asdict(about.recipe),
        "plan": about.plan,
        "generation": about.generation,
        "index": None if index is None else sha256(index).hexdigest(),
    }
    with atomic_write(directory / RECORDS_FILE) as temporary, gzip.open(temporary, "wt", 6, encoding="utf-8") as file:
        file.write(json.dumps(first) + "\n")
        for record in records:
            file.write(json.dumps(record) + "\n")


def earlier_dataset(directory: Path) -> ExistingDataset | None:
    """The dataset at `directory`, with what is known of its files; None if nothing is, or it is damaged."""
    try:
        content = (directory / INDEX_FILE).read_bytes()
        about, index, records = _read_records(directory)
        if index != sha256(content).hexdigest():
            return None
        ImagePyramid(directory)  # its files are there
        layout = layout_of(directory, parse_index(content))
        return ExistingDataset(directory, about, records, layout, None)
    except (OSError, ValueError, TypeError, KeyError, EOFError, UserError):
        return None


def earlier_attempt(directory: Path) -> ExistingDataset | None:
    """What an interrupted preparation left at `directory`; None if that is nothing."""
    try:
        about, _, records = _read_records(directory)
        images = sum(record.slot is not None for record in records.values())
        layout = new_layout(directory, about.recipe.resolution, about.recipe.channels, images, about.generation)
        journal = dict(read_journal(directory))
        if FILLED in journal:  # images have left their places
            return None
        done = frozenset(slot for slot, bad in journal.items() if bad is None)
        return ExistingDataset(directory, about, records, layout, done)
    except (OSError, ValueError, TypeError, KeyError, EOFError):
        return None


def read_journal(directory: Path) -> Iterator[tuple[int, str | None]]:
    """The places that an interrupted preparation had done, each with why there is no image, if there is none."""
    try:
        lines = (directory / JOURNAL_FILE).read_text().splitlines()
    except FileNotFoundError:
        return
    for line in lines:
        try:
            slot, bad = json.loads(line)
        except ValueError:  # cut off while it was written
            return
        yield int(slot), bad


def _read_records(directory: Path) -> tuple[About, str | None, dict[str, Record]]:
    with gzip.open(directory / RECORDS_FILE, "rt", encoding="utf-8") as file:
        about: dict[str, Any] = json.loads(file.readline())
        if about["format"] != FORMAT or about["version"] != VERSION:
            raise ValueError("another format")
        records = {}
        for line in file:
            record = Record(*json.loads(line))
            header = None if record.header is None else ImageHeader(*record.header)
            records[record.name] = record._replace(header=header)
        return About(Recipe(**about["recipe"]), about["plan"], about["generation"]), about["index"], records
