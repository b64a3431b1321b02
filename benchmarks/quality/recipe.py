"""What decides the figures of a row, kept with them: so figures of an earlier recipe are known as such."""

from functools import cache
from typing import Any

from benchmarks.quality.rows import Row
from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.config.describe import flatten
from pggan.core.validation import validated

PARTS = (
    *("data", "model", "schedule", "loss", "augmentation", "gradients", "optimizer", "ema", "precision", "elastic"),
    "hours",  # of which only the key is compared: what it chooses depends on the machine
)
PLACES = ("data.path", "data.cache")


def recipe_of(row: Row) -> dict[str, Any]:
    """The values that decide what `row` trains, by dotted key, as they are composed now."""
    return {**composed(*row.keys)}


@cache  # of the seeds of a row, and of the rows of one loss
def composed(*overrides: str) -> dict[str, Any]:
    """The values that decide what a run with `overrides` trains, by dotted key."""
    values = compose("train", [*overrides])
    values["loss"] = validated(TrainConfig, values).loss  # which has a number for gamma
    return {key: value for key, value in flatten({part: values[part] for part in PARTS}) if key not in PLACES}


def measured_by(row: Row) -> dict[str, list[str]]:
    """What the images of `row` are measured by."""
    return {"metrics": [*row.metrics], "extractors": [*row.extractors]}


def changes_since(found: dict[str, Any], row: Row) -> list[str]:
    """The keys of the recipe of `row` that have had another value since its figures `found` were measured.

    The default of a key that was not there then stands for what was done without it.
    """
    now = recipe_of(row)
    default = composed(*(f"{group}={now[f'{group}.name']}" for group in ("loss", "augmentation", "gradients")))
    then = default | found["recipe"]
    return [key for key, value in now.items() if value != then.get(key)]
