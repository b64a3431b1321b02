"""GAN losses and their gradient penalties: each loss is one file here and one YAML file in `configs/loss/`."""

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from pggan.core.errors import UserError, nearest
from pggan.core.validation import validated

if TYPE_CHECKING:  # a loss imports torch, which composing a configuration must not do
    from pggan.losses.base import Loss

AUTO = "auto"  # as loss.gamma: that of `gamma_by_rule`, or MIN_GAMMA where that is more
MIN_GAMMA = 1.0  # of loss.gamma=auto: less was worse wherever it was tried, up to 64x64 (lab book)
LOSSES = sorted({module.name for module in iter_modules(__path__)} - {"base", "gradient_penalty"})


def require_loss(name: str) -> None:
    """Raise UserError unless `name` is in LOSSES."""
    if name not in LOSSES:
        raise UserError(f"There is no loss '{name}'.", nearest(name, LOSSES))


def gamma_by_rule(resolution: int, batch: int) -> float:
    """The weight of R1 for a final resolution and the batch there.  (Karras et al. 2020: StyleGAN2-ADA, cfg=auto)"""
    return 0.0002 * resolution**2 / batch


def build_loss(options: dict[str, Any]) -> "Loss":
    """The loss `options["name"]` with the other options as its fields; raises UserError for what is not valid there."""
    name = str(options.get("name"))
    require_loss(name)
    from pggan.losses.base import Loss

    module = import_module(f"{__name__}.{name}")
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and issubclass(kind, Loss)]
    (schema,) = (kind for kind in classes if kind.__module__ == module.__name__)
    return validated(schema, {key: value for key, value in options.items() if key != "name"}, prefix="loss.")
