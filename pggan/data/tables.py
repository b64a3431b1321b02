"""Read the tables that users provide: the landmarks of faces, and the class of each image."""

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
    """Add the landmarks in the file `landmarks` to `source`'s entries; entries without landmarks become bad files."""
    if landmarks is None:
        return source
    listed, entries = read_landmarks(Path(landmarks)), []
    for entry in source.entries:
        problem = entry.problem if entry.name in listed else "no landmarks in the landmarks file"
        entries.append(entry._replace(face=listed.get(entry.name), problem=problem))
    return replace(source, entries=entries)


def read_landmarks(path: Path) -> dict[str, Landmarks]:
    """Read the landmarks of each image from a JSON file {name: points}.  Raises UserError if the file can't be read.

    Points are [x, y] in pixels of the upright photograph; the viewer's left comes first.  A face has 4 points (eyes,
    corners of the mouth), 5 points (eyes, nose, corners of the mouth) or dlib's 68 points.
    """
    with _refused(f"landmarks={path}", '{"a.jpg": [[x, y], …]} with 4, 5 or 68 points'):
        return {name: landmarks_from(points) for name, points in parse_json(path.read_bytes()).items()}


def landmarks_from(points: Any) -> Landmarks:
    """Convert 4, 5 or 68 points [x, y] to `Landmarks`.  Raises ValueError for other numbers of points, and for NaN."""
    array: Landmarks = np.array(points, float)
    if array.shape not in ((4, 2), (5, 2), (68, 2)) or not np.isfinite(array).all():
        raise ValueError(f"{array.shape[0] if array.ndim else 0} points, but a face has 4, 5 or 68 finite points")
    if len(array) == 68:
        array = np.stack([array[36:42].mean(0), array[42:48].mean(0), array[48], array[54]])
    return np.delete(array, 2, axis=0) if len(array) == 5 else array


def classes_of(labels: bool | str, source: str, entries: Sequence[Entry]) -> tuple[list[str] | None, dict[str, int]]:
    """The names of all classes, and the class index of each entry by file name; (None, {}) with labels=False.

    labels: True = use the labels of the entries; or the path of a JSON or CSV file of labels.
    source: the name of the source for error messages.  Raises UserError when an image has no class.
    """
    if labels is False:
        return None, {}
    listed = None if labels is True else read_labels(Path(str(labels)))
    found = {entry.name: entry.label if listed is None else listed.get(entry.name) for entry in entries}
    if missing := [name for name, label in found.items() if label is None]:
        raise UserError(
            f"{len(missing)} of {len(entries)} images in {source} have no class, {missing[0]} for example.",
            "Put each image into a folder of its class, or give labels=FILE with the path and class of each image.",
        )
    names = class_names([label for label in found.values() if label is not None])
    numbers = {label: number for number, label in enumerate(names)}
    return names, {name: numbers[label] for name, label in found.items() if label is not None}


def read_labels(path: Path) -> dict[str, str]:
    """Read the label of each image from a JSON file or a CSV file with two columns (name, label).

    The JSON is `{name: label}`, or `{"labels": [[name, label], …]}`.  Raises UserError if the file can't be read.
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
    """In a `with` block, raise any error as a UserError that names the table `given` and shows the right `form`."""
    try:
        yield
    except Exception as error:
        raise UserError(f"{given} can't be read: {error}.", f"Give JSON such as {form}.") from error


def class_names(classes: Sequence[str]) -> list[str]:
    """The distinct classes, sorted by value if all classes are numbers, else alphabetically."""
    distinct = set(classes)
    return sorted(distinct, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, distinct)) else None)
