"""GAN losses, one file each: a `Loss` dataclass here and a YAML in `configs/loss/` make one.

This file knows the names without importing torch.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from pggan.core.errors import UserError, nearest
from pggan.core.validation import validated

if TYPE_CHECKING:  # importing a loss imports torch, which composing a configuration must not do
    from pggan.losses.base import Loss

SHARED = ("base", "gradient_penalty")
LOSSES = sorted(module.name for module in iter_modules(__path__) if module.name not in SHARED)


def require_loss(name: str) -> None:
    """Raise UserError unless there is a loss of this name."""
    if name not in LOSSES:
        raise UserError(f"There is no loss '{name}'.", nearest(name, LOSSES))


def loss_class(name: str) -> "type[Loss]":
    """The `Loss` dataclass in the file `name`; raises UserError when there is none."""
    require_loss(name)
    from pggan.losses.base import Loss

    members = vars(import_module(f"{__name__}.{name}")).values()
    (found,) = (
        member
        for member in members
        if isinstance(member, type) and issubclass(member, Loss) and member.__module__ == f"{__name__}.{name}"
    )
    return found


def build_loss(options: dict[str, Any]) -> "Loss":
    """The loss `options["name"]` with its other options checked against its fields.

    Raises UserError for an unknown name, an unknown or missing option, or a value of the wrong type.
    """
    values = {key: value for key, value in options.items() if key != "name"}
    return validated(loss_class(str(options.get("name"))), values, prefix="loss.")
