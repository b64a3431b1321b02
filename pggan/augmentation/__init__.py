"""Augmentations of small data sets for D: each is one module here, one YAML file, and a name in AUGMENTATIONS."""

from typing import TYPE_CHECKING, Any

from pggan.core.errors import UserError, nearest
from pggan.core.validation import validated
from pggan.core.withdrawn import withdrawal

if TYPE_CHECKING:  # an augmentation imports torch, which composing a configuration must not do
    from pggan.augmentation.base import Augmentation

AUGMENTATIONS = ("none", "ada")


def require_augmentation(name: str) -> None:
    """Raise UserError unless `name` is in AUGMENTATIONS."""
    if name not in AUGMENTATIONS:
        unknown = UserError(f"There is no augmentation '{name}'.", nearest(name, AUGMENTATIONS))
        raise withdrawal(f"augmentation={name}") or unknown


def build_augmentation(options: dict[str, Any]) -> "Augmentation | None":
    """The augmentation `options["name"]` with the other options as its fields, or None for none.

    Raises UserError for what is not valid there.
    """
    name, others = str(options.get("name")), {key: value for key, value in options.items() if key != "name"}
    require_augmentation(name)
    if name == "none":
        if others:
            raise UserError(f"augmentation=none has no key '{next(iter(others))}'.", "Add augmentation=ada.")
        return None
    from pggan.augmentation.ada import Ada

    return validated(Ada, others, prefix="augmentation.")
