"""What decides the figures of a row, kept with them: so figures of an earlier recipe are known as such."""

from typing import Any

from benchmarks.quality.rows import Row
from pggan.cli.compose import compose
from pggan.config.describe import flatten

PARTS = (
    *("data", "model", "schedule", "loss", "augmentation", "gradients", "optimizer", "ema", "precision", "elastic"),
    "hours",  # of which only the key is compared: what it chooses depends on the machine
)
PLACES = ("data.path", "data.cache")


def recipe_of(row: Row) -> dict[str, Any]:
    """The values that decide what `row` trains, by dotted key, as they are composed now."""
    return _composed(*row.keys)


def _composed(*overrides: str) -> dict[str, Any]:
    values = compose("train", [*overrides])
    return {key: value for key, value in flatten({part: values[part] for part in PARTS}) if key not in PLACES}


def measured_by(row: Row) -> dict[str, list[str]]:
    """What the images of `row` are measured by."""
    return {"metrics": [*row.metrics], "extractors": [*row.extractors]}


def changes_since(found: dict[str, Any], row: Row) -> list[str]:
    """The keys of the recipe of `row` that have had another value since its figures `found` were measured.

    The default of a key that was not there then stands for what was done without it.
    """
    now, then = recipe_of(row), _composed() | found["recipe"]
    return [key for key, value in now.items() if value != then.get(key)]
