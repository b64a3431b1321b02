"""Every file examined before its pixels are decoded: what is wrong with it, and what is worth knowing about it."""

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pggan.core.errors import UserError
from pggan.data.face_crop import face_side
from pggan.data.image_file import BadImage, ImageHeader, read_header
from pggan.data.sources import Entry, Source
from pggan.data.workers import Workers

MAX_LINES = 20
NAMED_IN_LINE = 3


@dataclass
class Findings:
    """The files of a source, and what was found about them, by name.

    headers: where they can be read; reasons: why files can't be used.
    """

    source: Source
    headers: dict[str, ImageHeader] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def good(self) -> list[Entry]:
        """The files that can be used as far as is known, in their order."""
        return [entry for entry in self.source.entries if entry.name not in self.reasons]

    def refuse(self, on_bad: str) -> None:
        """Raise a UserError that names bad files if no good one is left, or if on_bad=stop and there are bad ones."""
        bad, total = len(self.reasons), len(self.source.entries)
        if bad == total or (bad and on_bad == "stop"):
            remedy = "Repair or remove them, or use on_bad=report."
            if bad == total:
                remedy = "Give other images, or a smaller max_resolution= (schedule.final_resolution= when training)."
            raise UserError("\n".join([f"{bad} of {total} images cannot be used:", *_lines(self._bad())]), remedy)

    def show(self) -> None:
        """List the bad files by reason on stderr, and how many of the others each note is about."""
        left_out = f"Left out {len(self.reasons)} of {len(self.source.entries)} images:"
        for title, groups in ((left_out, self._bad()), ("To know about the others:", self._notes())):
            if groups:
                print("\n".join([title, *_lines(groups)]), file=sys.stderr)

    def to_json(self, **more: object) -> str:
        """The content of report.json: the files left out by reason, and the others by note."""
        counts = {"files": len(self.source.entries), "usable": len(self.good())}
        return json.dumps({**counts, "left_out": self._bad(), "noted": self._notes(), **more}, indent=1) + "\n"

    def _bad(self) -> dict[str, list[str]]:
        """Names by reason."""
        return _grouped((reason, name) for name, reason in sorted(self.reasons.items()))

    def _notes(self) -> dict[str, list[str]]:
        """Names by note."""
        return _grouped((note, entry.name) for entry in self.good() for note in self.headers[entry.name].notes)


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that come with each text."""
    found: dict[str, list[str]] = {}
    for text, name in pairs:
        found.setdefault(text, []).append(name)
    return found


def _lines(groups: Mapping[str, list[str]]) -> list[str]:
    """A line about each group of files, the largest first, with its number of files and the first of them."""
    lines = []
    for text, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        # A name may hold codes that a terminal would obey.
        shown = [name if name.isprintable() else ascii(name) for name in names[:NAMED_IN_LINE]]
        lines.append(f"  {text}: {len(names)} ({', '.join(shown)}{', …' * (len(names) > len(shown))})")
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"  … and {len(lines) - MAX_LINES} more"]


def examine(source: Source, workers: Workers) -> Findings:
    """Read the header of every file."""
    found = Findings(source)
    for name, header in workers.in_order("Reading headers", header_of, source.in_reading_order()):
        if isinstance(header, str):
            found.reasons[name] = header
        else:
            found.headers[name] = header
    return found


def header_of(entry: Entry) -> tuple[str, ImageHeader | str]:
    """The name of a file, and its header, with the size of its face where that is cut out; or why it has none."""
    try:
        header = entry.problem or entry.header or read_header(entry.file)
        if entry.face is not None and isinstance(header, ImageHeader):
            header = header._replace(width=int(face_side(entry.face)), height=int(face_side(entry.face)))
        return entry.name, header
    except BadImage as bad:
        return entry.name, str(bad)
