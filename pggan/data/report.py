"""Every file examined before its pixels are decoded: what is wrong with it, and what is worth knowing about it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from pggan.core.errors import UserError
from pggan.data.image_file import BadImage, ImageHeader, read_header
from pggan.data.sources import Entry, Source
from pggan.data.workers import Workers

BAD_NAMED_IN_ERROR = 20
NAMED_PER_NOTE = 20
NAMED_ON_CONSOLE = 3


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
        bad, total = self._bad(), len(self.source.entries)
        if len(bad) < total and not (bad and on_bad == "stop"):
            return
        named = [f"  {_printable(path)}: {reason}" for path, reason in bad[:BAD_NAMED_IN_ERROR]]
        if len(bad) > len(named):
            named.append(f"  … and {len(bad) - len(named)} more")
        raise UserError(
            "\n".join([f"{len(bad)} of {total} images cannot be used:", *named]),
            "Give other images." if len(bad) == total else "Repair or remove them, or use on_bad=report.",
        )

    def show(self) -> None:
        """List the bad files by reason on stderr, and how many of the others each note is about."""
        console = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
        by_reason: dict[str, list[Path]] = {}
        for path, reason in self._bad():
            by_reason.setdefault(reason, []).append(path)
        if by_reason:
            console.print(f"Left out {len(self.reasons)} of {len(self.source.entries)} images:")
        for reason, paths in by_reason.items():
            if len(paths) > NAMED_ON_CONSOLE:
                console.print(f"  {_counted(reason, paths)}")
            else:
                console.print("\n".join(f"  {_printable(path)}: {reason}" for path in paths))
        if notes := self._notes():
            console.print("To know about the others:")
        for text, names in sorted(notes.items(), key=lambda item: -len(item[1])):
            console.print(f"  {_counted(text, [Path(name) for name in names])}")

    def to_json(self, **more: object) -> str:
        """The content of report.json: `left_out` is complete, `noted` has the first files of each note."""
        notes = {text: {"count": len(names), "files": names[:NAMED_PER_NOTE]} for text, names in self._notes().items()}
        content = {
            "files": len(self.source.entries),
            "usable": len(self.good()),
            "left_out": [{"file": str(path), "reason": reason} for path, reason in self._bad()],
            "noted": notes,
            **more,
        }
        return json.dumps(content, indent=1) + "\n"

    def _bad(self) -> list[tuple[Path, str]]:
        reasons = self.reasons
        return [(entry.file.path, reasons[entry.name]) for entry in self.source.entries if entry.name in reasons]

    def _notes(self) -> dict[str, list[str]]:
        notes: dict[str, list[str]] = {}
        for entry in self.good():
            for note in self.headers[entry.name].notes:
                notes.setdefault(note, []).append(entry.name)
        return notes


def _printable(path: Path) -> str:
    """A path for a terminal: a name may hold codes that it would obey."""
    name = str(path)
    return name if name.isprintable() else ascii(name)


def _counted(text: str, paths: Sequence[Path]) -> str:
    """`text` with the number of files it is about, and the first of them."""
    shown = [_printable(path) for path in paths[:NAMED_ON_CONSOLE]]
    return f"{text}: {len(paths)} ({', '.join(shown)}{', …' if len(paths) > len(shown) else ''})"


def examine(source: Source, workers: Workers) -> Findings:
    """Read the header of every file."""
    found, total = Findings(source), len(source.entries)
    for name, header in workers.in_order("Reading headers", _header_of, source.loaded(source.entries), total):
        if isinstance(header, str):
            found.reasons[name] = header
        else:
            found.headers[name] = header
    return found


def _header_of(entry: Entry) -> tuple[str, ImageHeader | str]:
    """The name of a file, and its header or why it has none."""
    try:
        return entry.name, entry.problem or entry.header or read_header(entry.file)
    except BadImage as bad:
        return entry.name, str(bad)
