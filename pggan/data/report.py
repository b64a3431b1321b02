"""Check image files before they are converted to a dataset: find faces, read headers, and report bad files."""

import json
import multiprocessing
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np
from PIL import Image

from pggan.core.errors import UserError
from pggan.data.face_crop import face_side
from pggan.data.image_file import BadImage, ImageHeader, decode, read_header, to_pil
from pggan.data.sources import Entry, Source
from pggan.data.workers import Workers

MAX_LINES, NAMED_IN_LINE = 20, 3
SECOND = "#2"  # the second face of a.jpg is named a.jpg#2
SIDE = 512  # the search for faces scales the longer side of photographs down to this many pixels


@dataclass
class Findings:
    """The image files of a folder, archive or data set, and the reasons why some of these files are bad."""

    source: Source
    headers: dict[str, ImageHeader] = field(default_factory=dict)  # {name of a readable file: header}
    reasons: dict[str, str] = field(default_factory=dict)  # {name of a bad file: why the file is bad}
    notes: dict[str, list[str]] = field(default_factory=dict)  # {file name: remarks to report, such as "not square"}

    def good(self) -> list[Entry]:
        return [entry for entry in self.source.entries if entry.name not in self.reasons]

    def refuse(self, on_bad: str) -> None:
        """Raise UserError if all files are bad, or if any file is bad and on_bad=stop."""
        bad, total = len(self.reasons), len(self.source.entries)
        if bad == total or (bad and on_bad == "stop"):
            remedy = "Repair or remove these files, or leave them out with on_bad=report."
            if bad == total:
                remedy = "Give other images, or repair damaged images."
                if any("smaller than" in reason for reason in self.reasons.values()):
                    remedy += " Or give a smaller max_resolution= (in training: schedule.final_resolution=)."
            raise UserError("\n".join([f"{bad} of {total} images cannot be used:", *_lines(self._bad())]), remedy)

    def show(self) -> None:
        left_out = f"Left out {len(self.reasons)} of {len(self.source.entries)} images:"
        for title, groups in ((left_out, self._bad()), ("Notes about the others:", self._notes())):
            if groups:
                print("\n".join([title, *_lines(groups)]), file=sys.stderr)
        if others := self.source.others:
            print(f"Files that are not images were skipped. Their number, by extension: {others}", file=sys.stderr)

    def to_json(self, **more: object) -> str:
        counts = {"files": len(self.source.entries), "usable": len(self.good())}
        lists = {"left_out": self._bad(), "noted": self._notes(), "passed_over": self.source.others}
        return json.dumps({**counts, **lists, **more}, indent=1) + "\n"

    def _bad(self) -> dict[str, list[str]]:
        return _grouped((reason, name) for name, reason in sorted(self.reasons.items()))

    def _notes(self) -> dict[str, list[str]]:
        return _grouped((note, entry.name) for entry in self.good() for note in self.notes[entry.name])


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for text, name in pairs:
        found.setdefault(text, []).append(name)
    return found


def _lines(groups: Mapping[str, list[str]]) -> list[str]:
    lines = []
    for text, names in sorted(groups.items(), key=lambda item: -len(item[1])):
        # Control characters in file names are escaped, because a terminal would interpret them.
        shown = [name if name.isprintable() else ascii(name) for name in names[:NAMED_IN_LINE]]
        lines.append(f"  {text}: {len(names)} ({', '.join(shown)}{', …' * (len(names) > len(shown))})")
    return lines if len(lines) <= MAX_LINES else [*lines[:MAX_LINES], f"  … and {len(lines) - MAX_LINES} more"]


def examine(source: Source, workers: Workers) -> Findings:
    """Read the headers of all files of `source` in worker processes, and find the bad files."""
    results = dict(workers.in_order("Reading headers", header_of, source.in_reading_order()))
    headers = {name: result for name, result in results.items() if isinstance(result, ImageHeader)}
    return Findings(source, headers, {name: result for name, result in results.items() if isinstance(result, str)})


def header_of(entry: Entry) -> tuple[str, ImageHeader | str]:
    """Return (file name, header) or, if the file is bad, (file name, text that says why the file is bad)."""
    try:
        header = entry.problem or entry.header or read_header(entry.file)
        if entry.face is not None and isinstance(header, ImageHeader):
            header = header._replace(width=int(face_side(entry.face)), height=int(face_side(entry.face)))
        return entry.name, header
    except BadImage as bad:
        return entry.name, str(bad)


def with_found_faces(source: Source, workers: Workers) -> Source:
    """Find faces, and return `source` with one Entry per face; photographs without a face are marked as bad."""
    from pggan.data import mtcnn  # importing torch takes seconds

    for network in mtcnn.NETWORKS:
        mtcnn.weights(network)  # if a package is missing, this raises UserError before the workers need the package
    found = workers.in_order("Finding faces", faces_of, source.in_reading_order())
    return replace(source, entries=list(chain.from_iterable(found)))


def faces_of(entry: Entry) -> list[Entry]:
    """Return an Entry per face in a photograph, the largest face first; without a face, an Entry with a `problem`."""
    import torch

    from pggan.data.mtcnn import find_faces

    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)  # one thread per worker process, because there is one worker per core
    if entry.problem is not None:
        return [entry]
    try:
        header, pixels = read_header(entry.file), decode(entry.file, 3, SIDE)[0]
    except BadImage as bad:
        return [entry._replace(problem=str(bad))]
    sides = np.array(pixels.shape[1::-1])
    small = np.ceil(sides * min(SIDE / max(sides), 1)).astype(int)
    scale = max(header.width, header.height) / max(sides) * sides / small
    reduced = to_pil(pixels).resize(small.tolist(), Image.Resampling.BOX)
    faces = [(points + 0.5) * scale - 0.5 for points in find_faces(reduced)]
    names = [entry.name, *(f"{entry.name}#{number}" for number in range(2, len(faces) + 1))]
    found = [entry._replace(name=name, face=face) for name, face in zip(names, faces, strict=False)]
    return found or [entry._replace(problem="no face found (crop=center takes the middle)")]
