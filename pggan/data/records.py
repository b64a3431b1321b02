"""Records of every file a dataset was made from, so that an unchanged one is never decoded again.

files.jsonl.gz lies in a dataset beside its index: a line about the whole, then one per file.  Without it, or when it
belongs to another index, everything is decoded again: it is worth time, never correctness.
"""

import gzip
import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.data.image_file import ImageHeader, ImageSpec
from pggan.data.layout import Layout
from pggan.data.pyramid import INDEX_FILE, ImagePyramid

RECORDS_FILES = "files*.jsonl.gz"  # * is the generation
JOURNAL_FILE = "done.jsonl"
FORMAT = "pggan-files"
VERSION = 1
FILLED = -1  # in the journal: no place is empty any more
NOT_READABLE = (OSError, ValueError, TypeError, KeyError, EOFError, UserError)


@dataclass(frozen=True)
class About:
    """The image spec, the plan and the files of a dataset.

    image_spec: what its pixels depend on besides the files: those made by the same image_spec can be taken over.
    plan: the digest of its plan; generation: a part of all its file names; index: a digest of its index, if it has one.
    """

    image_spec: ImageSpec
    plan: str
    generation: str
    index: str | None = None


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


class ExistingDataset(NamedTuple):
    """A dataset, or what an interrupted preparation left of one, whose images can be taken over."""

    about: About
    records: dict[str, Record]
    layout: Layout


def found_before(datasets: Iterable[ExistingDataset], name: str, stamp: str) -> list[tuple[Record, Layout]]:
    """The records of a file that has not changed since, and where the images of each dataset are."""
    found = ((dataset.records.get(name), dataset.layout) for dataset in datasets)
    return [(record, layout) for record, layout in found if record is not None and record.stamp == stamp]


def write_records(directory: Path, about: About, records: Iterable[Record]) -> None:
    """Write what is known of the files."""
    first = {"format": FORMAT, "version": VERSION, **vars(about), "image_spec": about.image_spec._asdict()}
    path = directory / RECORDS_FILES.replace("*", about.generation)
    with atomic_write(path) as temporary, gzip.open(temporary, "wt", 6, encoding="utf-8") as file:
        for line in (first, *records):
            file.write(json.dumps(line) + "\n")


def records_of(index: bytes, *directories: Path) -> tuple[About, dict[str, Record]]:
    """The records in one of these directories that belong to an index.  Raises ValueError if there are none."""
    for path in [path for directory in directories for path in directory.glob(RECORDS_FILES)]:
        about, records = _read_records(path)
        if about.index == sha256(index).hexdigest():
            return about, records
    raise ValueError("no records of this index")


def existing_dataset(directory: Path) -> ExistingDataset | None:
    """The dataset at `directory`, with what is known of its files; None if nothing is, or it is damaged."""
    try:
        about, records = records_of((directory / INDEX_FILE).read_bytes(), directory)
        ImagePyramid(directory)  # its files are there
        return ExistingDataset(about, records, _layout(directory, about, records))
    except NOT_READABLE:
        return None


def interrupted_dataset(directory: Path) -> ExistingDataset | None:
    """The images that an interrupted preparation left at `directory`; None if none of them can be taken over."""
    try:
        (path,) = directory.glob(RECORDS_FILES)
        about, records = _read_records(path)
        layout, journal = _layout(directory, about, records), read_journal(directory)
        if FILLED in journal:  # images have left their places
            return None
        done = {slot for slot, bad in journal.items() if bad is None}
        records = {name: each if each.slot in done else each._replace(slot=None) for name, each in records.items()}
        return ExistingDataset(about, records, layout)
    except NOT_READABLE:
        return None


def _layout(directory: Path, about: About, records: dict[str, Record]) -> Layout:
    images = sum(record.slot is not None for record in records.values())
    return Layout(directory, about.image_spec.resolution, about.image_spec.channels, images, about.generation)


def read_journal(directory: Path) -> dict[int, str | None]:
    """The places that a preparation has done, each with why there is no image, if there is none."""
    done = {}
    with suppress(FileNotFoundError):
        for line in (directory / JOURNAL_FILE).read_text().splitlines():
            with suppress(ValueError):  # of a line that was cut off while it was written
                slot, bad = json.loads(line)
                done[int(slot)] = bad
    return done


def _read_records(path: Path) -> tuple[About, dict[str, Record]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        about: dict[str, Any] = json.loads(file.readline())
        if (about.pop("format"), about.pop("version")) != (FORMAT, VERSION):
            raise ValueError("another format")
        records = {}
        for line in file:
            record = Record(*json.loads(line))
            header = None if record.header is None else ImageHeader(*record.header)
            records[record.name] = record._replace(header=header)
        return About(**{**about, "image_spec": ImageSpec(**about["image_spec"])}), records
