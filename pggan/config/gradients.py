"""Keys of how gradients travel between processes."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from pggan.core.errors import UserError, nearest
from pggan.core.validation import require, validated

GRADIENTS = ("dense", "bf16", "dgc")


@dataclass(frozen=True, kw_only=True)
class DgcConfig:
    """Deep gradient compression."""

    ratio: float
    warm_up_images: int
    clip: float | None

    def __post_init__(self) -> None:
        require(0 < self.ratio <= 1, "gradients.ratio", self.ratio, "above 0 and at most 1")
        require(self.warm_up_images >= 0, "gradients.warm_up_images", self.warm_up_images, "at least 0")
        require(self.clip is None or 0 < self.clip < inf, "gradients.clip", self.clip, "above 0, or null")


def dgc_options(options: Mapping[str, Any], *, elastic: bool) -> DgcConfig | None:
    """The options of compression, or None where gradients are sent whole; raises UserError for what does not exist."""
    name = str(options.get("name"))
    if name not in GRADIENTS:
        raise UserError(f"There is no gradients={name}.", nearest(name, GRADIENTS))
    if elastic and name != "dense":
        raise UserError(f"elastic=true adds up gradients exactly, gradients={name} does not.", "Take gradients=dense.")
    others = {key: value for key, value in options.items() if key != "name"}
    if name == "dgc":
        return validated(DgcConfig, others, "gradients.")
    if others:
        raise UserError(f"gradients={name} has no key '{next(iter(others))}'.", "gradients=dgc has options.")
    return None
