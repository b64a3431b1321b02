"""Which class each image belongs to: its first sub-folder, or what a JSON or CSV file says."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pggan.core.errors import UserError
from pggan.data.source import Entry


def classes_of(labels: bool | str, source: str, entries: Sequence[Entry]) -> tuple[list[str] | None, dict[str, int]]:
    """The names of all classes, and the number of the class of every entry, by its name; None and {} without labels.

    labels: whether to take what the source itself says, or the path of a JSON or CSV file; source: its name in
    messages.  Raises UserError when an image has no class.
    """
    if labels is False:
        return None, {}
    listed = None if labels is True else read_labels(Path(str(labels)))
    found = {entry.name: entry.label if listed is None else listed.get(entry.name) for entry in entries}
    of_entry = {name: label for name, label in found.items() if label is not None}
    missing = [name for name in found if name not in of_entry]
    if missing and listed is None:
        raise UserError(
            f"{len(missing)} images are directly in {source}, so they have no class.",
            "Move each into a sub-folder named after its class, or set labels=false.",
        )
    if missing:
        raise UserError(
            f"labels={labels} has no label for {len(missing)} of {len(entries)} images, {missing[0]} for one.",
            "Names are paths below the source, with slashes.",
        )
    names = class_names(list(of_entry.values()))
    numbers = {name: number for number, name in enumerate(names)}
    return names, {name: numbers[of_image] for name, of_image in of_entry.items()}


def read_labels(path: Path) -> dict[str, str]:
    """Labels by file name, from JSON (`{name: label}`, or `{"labels": [[name, label], …]}`) or CSV (name, label).

    Raises UserError.
    """
    try:
        if path.suffix.lower() == ".json":
            content: Any = json.loads(path.read_text())
            pairs = content["labels"] if isinstance(content.get("labels"), list) else list(content.items())
        else:
            with path.open(newline="") as file:
                pairs = [row for row in csv.reader(file) if row]
        labels = {str(name): str(label).strip() for name, label in pairs}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError, csv.Error) as error:
        raise UserError(
            f"labels={path} can't be read: {error}.",
            'Give JSON such as {"a.jpg": "cat"}, or CSV with two columns: name, label.',
        ) from error
    if not labels:
        raise UserError(f"labels={path} is empty.", "Give one label per image.")
    return labels


def class_names(classes: Sequence[str]) -> list[str]:
    """All classes once, numbers in their order and names by the alphabet."""
    distinct = set(classes)
    return sorted(distinct, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, distinct)) else None)
