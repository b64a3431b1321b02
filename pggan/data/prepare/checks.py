"""Every file looked at before training: what is wrong with it, and what is to be known about it."""

import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError
from pggan.data.prepare.worker_pool import WorkerPool
from pggan.data.sources.image_file import BadImage, ImageHeader, printable, read_header
from pggan.data.sources.source import Entry, Source

Result = TypeVar("Result")

BAD_NAMED_IN_ERROR = 20
NAMED_PER_NOTE = 20
NAMED_ON_CONSOLE = 3
END_BYTES = 16_384
DUPLICATE = "the same bytes as another file"


@dataclass
class ValidationReport:
    """What is known of the files of a source: `headers` by name, or a reason in `bad`; `notes` on usable ones."""

    headers: dict[str, ImageHeader] = field(default_factory=dict)
    bad: dict[str, BadImage] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))

    def note(self, name: str, text: str) -> None:
        """Say something about a file; the same text for all files that it is true of."""
        self.notes[text].append(name)


def examine(source: Source, entries: Sequence[Entry], workers: WorkerPool) -> ValidationReport:
    """Look at the header of every file, and at the bytes of those that may be the same as another."""
    report = ValidationReport()
    sizes = Counter(entry.size for entry in entries if entry.problem is None)
    twins = frozenset(size for size, count in sizes.items() if count > 1)
    alike: dict[bytes, list[str]] = defaultdict(list)
    look = partial(_look, twins)
    with workers.in_order("Reading headers", look, source.loaded(entries), len(entries)) as results:
        for name, header, digest in results:
            if isinstance(header, BadImage):
                report.bad[name] = header
                continue
            report.headers[name] = header
            for note in header.notes:
                report.note(name, note)
            if digest is not None:
                alike[digest].append(name)
    suspects = {name for names in alike.values() if len(names) > 1 for name in names}
    _find_duplicates(source, [entry for entry in entries if entry.name in suspects], workers, report)
    return report


def _find_duplicates(source: Source, suspects: Sequence[Entry], workers: WorkerPool, report: ValidationReport) -> None:
    """Note every file among `suspects` that is the same, byte by byte, as one before it."""
    if not suspects:
        return
    with workers.in_order("Comparing files", _whole_digest, source.loaded(suspects), len(suspects)) as results:
        digests = dict(results)
    first: dict[bytes, str] = {}
    for entry in suspects:
        if first.setdefault(digests[entry.name], entry.name) != entry.name:
            report.note(entry.name, DUPLICATE)


def _look(twins: frozenset[int], entry: Entry) -> tuple[str, ImageHeader | BadImage, bytes | None]:
    """The header of a file, and a digest of its ends where another one has its size."""
    if entry.problem is not None:
        return entry.name, BadImage(entry.file.path, entry.problem), None
    header = attempt(read_header, entry.file)
    if isinstance(header, BadImage) or entry.size not in twins:
        return entry.name, header, None
    try:
        with entry.file.open() as file:
            ends = file.read(END_BYTES)
            file.seek(-min(END_BYTES, entry.size), 2)
            return entry.name, header, hashlib.sha256(ends + file.read()).digest()
    except Exception:  # a damaged member of an archive, in every way: decoding will tell
        return entry.name, header, None


def _whole_digest(entry: Entry) -> tuple[str, bytes]:
    """A digest of all of a file; of its name, if it can't be read."""
    digest = hashlib.sha256()
    try:
        with entry.file.open() as file:
            while piece := file.read(2**20):
                digest.update(piece)
    except Exception:  # as above
        digest.update(entry.name.encode(errors="surrogateescape"))
    return entry.name, digest.digest()


def attempt(read: Callable[..., Result], *arguments: object) -> Result | BadImage:
    """What `read` gives, or the BadImage that it raises."""
    try:
        return read(*arguments)
    except BadImage as bad:
        return bad


# ---- saying so


def refuse(bad: Sequence[BadImage], total: int, on_bad: str) -> None:
    """Raise a UserError if these bad images among `total` leave nothing, or if any is one too many."""
    if len(bad) < total and not (bad and on_bad == "stop"):
        return
    named = [f"  {image}" for image in bad[:BAD_NAMED_IN_ERROR]]
    if len(bad) > len(named):
        named.append(f"  … and {len(bad) - len(named)} more")
    raise UserError(
        "\n".join([f"{len(bad)} of {total} images cannot be used:", *named]),
        "Give other images." if len(bad) == total else "Repair or remove them, or use on_bad=report.",
    )


def show(bad: Sequence[BadImage], notes: Mapping[str, Sequence[str]], total: int) -> None:
    """List on stderr each bad file with its reason, and how many of the others there is something to say about."""
    console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if bad:
        console.print(f"Left out {len(bad)} of {total} images:")
    for image in bad:
        console.print(f"  {image}")
    if notes:
        console.print("To know about the others:")
    for text, names in sorted(notes.items(), key=lambda item: -len(item[1])):
        shown = [printable(Path(name)) for name in names[:NAMED_ON_CONSOLE]]
        more = ", …" if len(names) > len(shown) else ""
        console.print(f"  {text}: {len(names)} ({', '.join(shown)}{more})")


def write_report(path: Path, bad: Sequence[BadImage], notes: Mapping[str, Sequence[str]], total: int) -> None:
    """The same as JSON: `left_out` is complete, `noted` has the first files of each kind."""
    content: dict[str, Any] = {
        "files": total,
        "usable": total - len(bad),
        "left_out": [{"file": str(image.path), "reason": image.reason} for image in bad],
        "noted": {text: {"count": len(names), "files": names[:NAMED_PER_NOTE]} for text, names in notes.items()},
    }
    with atomic_write(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1) + "\n")
