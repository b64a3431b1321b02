"""Keys of how the gradients of several ranks are reduced."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pggan.core.errors import UserError, nearest
from pggan.core.validation import require_bounds, validated

GRADIENTS = ("fp32", "bf16", "dgc")
DGC_RATIO = 0.1  # the default of gradients.ratio in configs/gradients/dgc.yaml


@dataclass(frozen=True, kw_only=True)
class DgcConfig:
    """Deep gradient compression."""

    ratio: float
    warmup_images: int
    clip: float | None

    def __post_init__(self) -> None:
        require_bounds(self, "gradients.", ratio=">0 <=1", warmup_images=">=0", clip=">0")


def dgc_options(options: Mapping[str, Any], *, elastic: bool) -> DgcConfig | None:
    """The checked options of gradients=dgc, None for fp32 and bf16; raises UserError for what does not exist."""
    name = str(options.get("name"))
    if name not in GRADIENTS:
        raise UserError(f"There is no gradients={name}.", nearest(name, GRADIENTS))
    if elastic and name != "fp32":
        raise UserError(f"elastic=true needs exact gradients, not gradients={name}.", "Take gradients=fp32.")
    others = {key: value for key, value in options.items() if key != "name"}
    if name == "dgc":
        return validated(DgcConfig, others, "gradients.")
    if others:
        raise UserError(f"gradients={name} has no key '{next(iter(others))}'.", "gradients=dgc has options.")
    return None
