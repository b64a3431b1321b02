"""Tables that people bring: the landmarks of faces, and the class of each image."""

import csv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pggan.core.atomic_io import parse_json
from pggan.core.errors import UserError
from pggan.data.face_crop import Landmarks
from pggan.data.sources import Entry, Source


def with_faces(source: Source, landmarks: str | None) -> Source:
    """A source whose entries have the landmarks in a file, where they have the same names."""
    if landmarks is None:
        return source
    listed, entries = read_landmarks(Path(landmarks)), []
    for entry in source.entries:
        problem = entry.problem if entry.name in listed else "no landmarks in the landmarks file"
        entries.append(entry._replace(face=listed.get(entry.name), problem=problem))
    return replace(source, entries=entries)


def read_landmarks(path: Path) -> dict[str, Landmarks]:
    """Landmarks by file name, from JSON: {name: points}.

    Points are 4 (eyes, corners of the mouth), 5 (with the nose in the middle) or dlib's 68, each [x, y] in pixels of
    the upright photograph, left as seen before right.  Raises UserError.
    """
    with _refused(f"landmarks={path}", '{"a.jpg": [[x, y], …]} with 4, 5 or 68 points'):
        return {name: landmarks_from(points) for name, points in parse_json(path.read_bytes()).items()}


def landmarks_from(points: Any) -> Landmarks:
    """4, 5 or 68 points [x, y] as landmarks.  Raises ValueError for any other number of points, NaN or infinity."""
    array: Landmarks = np.array(points, float)
    if array.shape not in ((4, 2), (5, 2), (68, 2)) or not np.isfinite(array).all():
        raise ValueError(f"{array.shape[0] if array.ndim else 0} points where 4, 5 or 68 are known")
    if len(array) == 68:
        array = np.stack([array[36:42].mean(0), array[42:48].mean(0), array[48], array[54]])
    return np.delete(array, 2, axis=0) if len(array) == 5 else array


def classes_of(labels: bool | str, source: str, entries: Sequence[Entry]) -> tuple[list[str] | None, dict[str, int]]:
    """The names of all classes, and the number of the class of every entry, by its name; None and {} without labels.

    labels: whether to take what the source itself says, or the path of a JSON or CSV file; source: its name in
    messages.  Raises UserError when an image has no class.
    """
    if labels is False:
        return None, {}
    listed = None if labels is True else read_labels(Path(str(labels)))
    found = {entry.name: entry.label if listed is None else listed.get(entry.name) for entry in entries}
    if missing := [name for name, label in found.items() if label is None]:
        raise UserError(
            f"{len(missing)} of {len(entries)} images in {source} have no class, {missing[0]} for one.",
            "labels=true takes the first sub-folder; in a table, names are paths below the source, with slashes.",
        )
    names = class_names([label for label in found.values() if label is not None])
    numbers = {label: number for number, label in enumerate(names)}
    return names, {name: numbers[label] for name, label in found.items() if label is not None}


def read_labels(path: Path) -> dict[str, str]:
    """Labels by file name, from JSON (`{name: label}`, or `{"labels": [[name, label], …]}`) or CSV (name, label).

    Raises UserError.
    """
    with _refused(f"labels={path}", '{"a.jpg": "cat"}, or CSV with two columns: name, label'):
        if path.suffix.lower() == ".json":
            content = parse_json(path.read_bytes())
            pairs = content["labels"] if isinstance(content.get("labels"), list) else list(content.items())
        else:
            with path.open(newline="") as file:
                pairs = [row for row in csv.reader(file) if row]
        return {str(name): str(label).strip() for name, label in pairs}


@contextmanager
def _refused(given: str, form: str) -> Iterator[None]:
    """Whatever is wrong with a table becomes a UserError."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{given} can't be read: {error}.", f"Give JSON such as {form}.") from error


def class_names(classes: Sequence[str]) -> list[str]:
    """All classes once, numbers in their order and names by the alphabet."""
    distinct = set(classes)
    return sorted(distinct, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, distinct)) else None)
