"""Read tables that users provide: the landmarks of faces, and the class of each image."""

import csv
import json
import posixpath
import re
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from decimal import Decimal
from io import StringIO
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from unicodedata import normalize

import numpy as np
import yaml

from pggan.core.atomic_io import parse_json
from pggan.core.errors import UserError
from pggan.data.face_crop import Landmarks
from pggan.data.sources import Entry, Source

Value = TypeVar("Value")

SIGNS = ",;\t| "
MOST_ALONE = 10  # It is an error if each image has a class of its own, and there are more images than this.
NUMBER = re.compile(r"[-+]?\d*[.,]?\d+(e[-+]?\d+)?", re.IGNORECASE)


def with_landmarks(source: Source, path: Path) -> Source:
    """Add landmarks from a JSON file {name: points in pixels of the upright image}; images without points are bad."""
    with _refused(f"landmarks={path}", '{"a.jpg": [[x, y], …]} with 4, 5 or 68 points'):
        given = parse_json(path.read_bytes())
        listed = {name: landmarks_from(points, name) for name, points in given.items() if points}  # null: no face
    faces, missing = matched(listed, [entry.name for entry in source.entries]), "no landmarks in the landmarks file"
    with_faces = (entry._replace(face=faces.get(entry.name)) for entry in source.entries)
    return replace(source, entries=[one if one.name in faces else one._replace(problem=missing) for one in with_faces])


def landmarks_from(points: Any, name: str = "a face") -> Landmarks:
    """Convert 4 points, 5 points (with the nose) or dlib's 68 points to `Landmarks`, or raise ValueError."""
    array: Landmarks = np.array(points, float)
    if array.shape not in ((4, 2), (5, 2), (68, 2)) or not np.isfinite(array).all():
        raise ValueError(f"{name} needs 4, 5 or 68 finite points [x, y], and has {array.shape[0] if array.ndim else 0}")
    if len(array) == 68:
        array = np.stack([array[36:42].mean(0), array[42:48].mean(0), array[48], array[54]])
    return np.delete(array, 2, axis=0) if len(array) == 5 else array


def plain(name: str) -> str:
    """Normalize an image's path, and remove the number of a face: ./a.jpg#2 becomes a.jpg."""
    return normalize("NFC", posixpath.normpath(re.sub(r"#\d+$", "", name.strip()).replace("\\", "/")))


def matched(listed: Mapping[str, Value], names: Sequence[str]) -> dict[str, Value]:
    """Look `names` up in `listed`, and return {name: value} for all found; the function `plain` normalizes names."""
    table = {plain(name): value for name, value in listed.items()}
    return {name: table[plain(name)] for name in names if plain(name) in table}


def classes_of(labels: bool | str, source: Source, entries: Sequence[Entry]) -> tuple[list[str] | None, dict[str, int]]:
    """Return the sorted class names, and {file name: class index}.  Without labels, return (None, {}).

    `labels` is the path of a table, True (classes from dataset.json or else from folder names), or False (no labels).
    """
    if labels is False:
        return None, {}
    found = {entry.name: normalize("NFC", entry.label) for entry in entries if entry.label is not None}
    table = source.table if labels is True else None
    given = f"labels={labels}" if table is None else table.name
    with _refused(given, '{"a.jpg": "cat"}, or CSV in UTF-8 with two columns: name, label'):
        content = Path(labels).read_bytes() if isinstance(labels, str) else b""
        if table is not None:
            with table.file.open() as file:
                content = file.read()
        if isinstance(labels, str) or b'"labels"' in content.replace(b"\0", b""):  # the table may be UTF-16
            start = "" if table is None else f"{PurePosixPath(table.name).parent}/"
            whole = {entry.name.removeprefix(start): entry.name for entry in entries}
            found = {whole[name]: label for name, label in read_labels(content, [*whole]).items()}
    if missing := [entry.name for entry in entries if entry.name not in found]:
        problem = f"{len(missing)} of {len(entries)} images in {source.description['name']} have no class"
        problem += f", {missing[0]} for example." if table is None else f" in {table.name}, {missing[0]} for example."
        remedy = f"give labels=FILE with a row per image: {missing[0]},CLASS"
        raise UserError(problem, f"Put each image into a folder of its class, or {remedy}")
    distinct = set(found.values())
    names = sorted(distinct, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, distinct)) else None)
    if len(names) == len(entries) > MOST_ALONE:
        raise UserError(
            f"Every image has a class of its own. labels={labels} gives {len(names)} classes, such as {names[0]}.",
            "Several images have to share a class. Continuous values or vectors can't be labels.",
        )
    numbers = {label: number for number, label in enumerate(names)}
    return names, {name: numbers[label] for name, label in found.items()}


def read_labels(content: bytes, names: Sequence[str]) -> dict[str, str]:
    """Read a table of labels, and return {name: label} for `names`; raises ValueError if the table is invalid.

    The table is JSON (`{name: label}` or `{"labels": [[name, label], …]}`), or text with two columns, such as CSV.
    """
    text = content.decode("utf-16" if content[:2] in (BOM_UTF16_LE, BOM_UTF16_BE) else "utf-8-sig")
    if text.lstrip()[:1] in ("{", "["):
        # A dictionary would hide a name's second label, so JSON is read as pairs.  NaN (from Pandas) means no label.
        rows = json.loads(text, object_pairs_hook=list, parse_float=str, parse_constant=lambda _: None)
        rows = next((value for key, value in rows if key == "labels"), rows)
        if rows is None:
            raise ValueError("its labels are null, as StyleGAN's tool writes for images without classes")
        tables = [rows]
    else:
        readers = (csv.reader(StringIO(text, newline=""), delimiter=sign, skipinitialspace=True) for sign in SIGNS)
        tables = [[row if any(row[2:]) else row[:2] for row in rows if row] for rows in readers]
        tables = [rows for rows in tables if rows and all(len(row) == 2 for row in rows)]
        if re.search(r"^[^,;\t\n]+:\s", text, re.MULTILINE):  # a row such as "a.jpg: cat" in YAML
            with suppress(yaml.YAMLError, TypeError, AttributeError):
                nodes = yaml.compose(text, yaml.SafeLoader).value
                tables.insert(0, [(key.value, None if one.tag[-5:] == ":null" else one.value) for key, one in nodes])
        if not tables:
            raise ValueError("its rows do not have two columns")
    pairs = max(tables, key=lambda rows: len(matched({str(row[0]): 0 for row in rows}, names)))
    found: dict[str, str] = {}
    for name, label in pairs:
        text = "" if label is None else normalize("NFC", str(label).strip())
        if text in ("", "nan", "NaN"):
            continue
        number = float(text.replace(",", ".")) if NUMBER.fullmatch(text) else None
        if isinstance(label, list) or (number is not None and not number.is_integer()) or text.endswith(",000"):
            raise ValueError(f"{name} has the label {label}; a label has to be the name or the number of a class")
        if number is not None and re.search("[.,e]", text.lower()):
            text = str(int(Decimal(text.replace(",", "."))))  # 1.0 is class 1; float would round long numbers
        if found.setdefault(plain(str(name)), text) != text:
            raise ValueError(f"{name} has two labels, {found[plain(str(name))]} and {text}")
    return matched(found, names)


@contextmanager
def _refused(given: str, form: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise UserError(f"{given} can't be read: {error}.", f"Give JSON such as {form}.") from error
