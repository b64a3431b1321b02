"""Losses by name.  A new loss is one file here, with one `Loss` dataclass, and one YAML in `configs/loss/`."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from pggan.schema import validated

if TYPE_CHECKING:  # importing a loss imports torch, which composing a configuration must not do
    from pggan.losses.base import Loss

LOSSES = sorted(module.name for module in iter_modules(__path__) if module.name != "base")


def loss_class(name: str) -> "type[Loss]":
    """The `Loss` dataclass in the file `name`."""
    from pggan.losses.base import Loss

    module = import_module(f"{__name__}.{name}")
    (found,) = (
        member
        for member in vars(module).values()
        if isinstance(member, type) and issubclass(member, Loss) and member.__module__ == module.__name__
    )
    return found


def build_loss(options: dict[str, Any]) -> "Loss":
    """The loss `options["name"]` with its other options checked against its fields.

    Raises UserError for an unknown name, an unknown or missing option, or a value of the wrong type.
    """
    values = {key: value for key, value in options.items() if key != "name"}
    return validated(loss_class(options["name"]), values, prefix="loss.")
