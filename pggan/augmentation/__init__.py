"""Augmentation of small data sets for D."""

from collections.abc import Mapping
from typing import Any

from pggan.augmentation.ada import Ada
from pggan.augmentation.base import Augmentation


def build_augmentation(options: Mapping[str, Any]) -> Augmentation | None:
    """ADA with the checked `options` but their name as its fields, or None for the name none."""
    return None if options["name"] == "none" else Ada(**{key: options[key] for key in options if key != "name"})
