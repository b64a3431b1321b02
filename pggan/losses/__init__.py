"""GAN losses and their gradient penalties: each loss is one file here and one YAML file in `configs/loss/`."""

from collections.abc import Callable, Mapping
from typing import Any

from pggan.losses.base import Loss
from pggan.losses.logistic import Logistic
from pggan.losses.relativistic import Relativistic
from pggan.losses.wgan_gp import WganGp

LOSSES: dict[str, Callable[..., Loss]] = {"logistic": Logistic, "relativistic": Relativistic, "wgan_gp": WganGp}


def build_loss(options: Mapping[str, Any]) -> Loss:
    """The loss of the name in the checked `options`, the others of which are its fields."""
    return LOSSES[options["name"]](**{key: value for key, value in options.items() if key != "name"})
