"""Every file examined before training: what is wrong with it, and what is worth knowing about it."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.data.image_file import BadImage, printable, read_header
from pggan.data.records import Record
from pggan.data.source import Entry, Source
from pggan.data.worker_pool import WorkerPool

BAD_NAMED_IN_ERROR = 20
NAMED_PER_NOTE = 20
NAMED_ON_CONSOLE = 3
END_BYTES = 16_384
REPORT_FILE = "report.json"  # of a dataset, beside its index
DUPLICATE = "the same bytes as another file"


def examine(source: Source, entries: Sequence[Entry], workers: WorkerPool) -> dict[str, Record]:
    """The record of every file, by name, from its header, and from its bytes where another file may be the same."""
    sizes = Counter(entry.size for entry in entries if entry.problem is None)
    shared_sizes = frozenset(size for size, count in sizes.items() if count > 1)
    records: dict[str, Record] = {}
    same_ends: dict[bytes, list[str]] = defaultdict(list)
    one = partial(_examine_one, shared_sizes)
    for record, digest in workers.in_order("Reading headers", one, source.loaded(entries), len(entries)):
        records[record.name] = record
        if digest is not None:
            same_ends[digest].append(record.name)
    names = {name for group in same_ends.values() if len(group) > 1 for name in group}
    if not names:
        return records
    suspects = [entry for entry in entries if entry.name in names]
    digests = dict(workers.in_order("Comparing files", _whole_digest, source.loaded(suspects), len(suspects)))
    first: dict[bytes, str] = {}
    for entry in suspects:
        if first.setdefault(digests[entry.name], entry.name) != entry.name:
            records[entry.name].notes.append(DUPLICATE)
    return records


def _examine_one(shared_sizes: frozenset[int], entry: Entry) -> tuple[Record, bytes | None]:
    """The record of a file, and a digest of its ends where another one has its size."""
    record = Record(entry.name, entry.stamp, entry.header, [], entry.problem)
    if entry.problem is not None or entry.header is not None:
        return record, None
    try:
        header = read_header(entry.file)
    except BadImage as bad:
        return record._replace(unreadable=bad.reason), None
    record = record._replace(header=header, notes=list(header.notes))
    if entry.size not in shared_sizes:
        return record, None
    try:
        with entry.file.open() as file:
            ends = file.read(END_BYTES)
            file.seek(-min(END_BYTES, entry.size), 2)
            return record, hashlib.sha256(ends + file.read()).digest()
    except Exception:  # a damaged member of an archive, in every way: decoding will tell
        return record, None


def _whole_digest(entry: Entry) -> tuple[str, bytes]:
    """A digest of all of a file; of its name, if it can't be read."""
    try:
        with entry.file.open() as file:
            return entry.name, hashlib.file_digest(file, "sha256").digest()  # type: ignore[arg-type]
    except Exception:  # as above
        return entry.name, entry.name.encode(errors="surrogateescape")


@dataclass(frozen=True)
class ValidationReport:
    """Findings among `total` files: the bad ones, and the names of others by what is noted about them."""

    bad: Sequence[BadImage]
    notes: Mapping[str, Sequence[str]]
    total: int

    def refuse(self, on_bad: str) -> None:
        """Raise a UserError if no good file is left, or if on_bad=stop and there are bad ones."""
        if len(self.bad) < self.total and not (self.bad and on_bad == "stop"):
            return
        named = [f"  {image}" for image in self.bad[:BAD_NAMED_IN_ERROR]]
        if len(self.bad) > len(named):
            named.append(f"  … and {len(self.bad) - len(named)} more")
        raise UserError(
            "\n".join([f"{len(self.bad)} of {self.total} images cannot be used:", *named]),
            "Give other images." if len(self.bad) == self.total else "Repair or remove them, or use on_bad=report.",
        )

    def show(self) -> None:
        """List the bad files by reason on stderr, and how many of the others each note is about."""
        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        if self.bad:
            console.print(f"Left out {len(self.bad)} of {self.total} images:")
        by_reason: dict[str, list[BadImage]] = {}
        for image in self.bad:
            by_reason.setdefault(image.reason, []).append(image)
        for reason, images in by_reason.items():
            if len(images) > NAMED_ON_CONSOLE:
                console.print(f"  {_counted(reason, [image.path for image in images])}")
            else:
                console.print("\n".join(f"  {image}" for image in images))
        if self.notes:
            console.print("To know about the others:")
        for text, names in sorted(self.notes.items(), key=lambda item: -len(item[1])):
            console.print(f"  {_counted(text, [Path(name) for name in names])}")

    def write(self, path: Path) -> None:
        """Write it as JSON: `left_out` is complete, `noted` has the first files of each note."""
        content: dict[str, Any] = {
            "files": self.total,
            "usable": self.total - len(self.bad),
            "left_out": [{"file": str(image.path), "reason": image.reason} for image in self.bad],
            "noted": {
                text: {"count": len(names), "files": names[:NAMED_PER_NOTE]} for text, names in self.notes.items()
            },
        }
        with atomic_write(path) as temporary:
            temporary.write_text(json.dumps(content, indent=1) + "\n")


def _counted(text: str, paths: Sequence[Path]) -> str:
    """`text` with the number of files it is about, and the first of them."""
    shown = [printable(path) for path in paths[:NAMED_ON_CONSOLE]]
    return f"{text}: {len(paths)} ({', '.join(shown)}{', …' if len(paths) > len(shown) else ''})"


def left_out(dataset: Path) -> str:
    """How many files its preparation left out, for the end of a line; nothing if there were none, or no report."""
    try:
        count = len(json.loads((dataset / REPORT_FILE).read_text())["left_out"])
    except (OSError, ValueError, KeyError):  # a dataset of avatars has none
        return ""
    return f"; {count:,} files left out ({dataset / REPORT_FILE})" if count else ""


def report_on(
    entries: Collection[Entry], records: Mapping[str, Record], reasons: Mapping[str, str | None]
) -> ValidationReport:
    """The report on some files; `reasons`: why a file can't be used, by its name, or None."""
    bad, notes = [], defaultdict(list)
    for entry in entries:
        if (reason := reasons.get(entry.name)) is not None:
            bad.append(BadImage(entry.file.path, reason))
        else:
            for note in records[entry.name].notes:
                notes[note].append(entry.name)
    return ValidationReport(bad, notes, len(entries))
