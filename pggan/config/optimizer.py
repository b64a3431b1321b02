"""Keys of Adam and of the averaged generator."""

from dataclasses import dataclass

from pggan.core.errors import UserError
from pggan.core.validation import require_bounds


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Adam, for both networks."""

    beta1: float = 0.0
    beta2: float = 0.99
    epsilon: float = 1e-8
    reset_at_phase: bool = True

    def __post_init__(self) -> None:
        require_bounds(self, "optimizer.", beta1=">=0 <1", beta2=">=0 <1", epsilon=">0")


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """The averaged generator."""

    half_life_images: float | None
    rampup: float | None
    decay_per_update: float | None

    def __post_init__(self) -> None:
        if (self.half_life_images is None) == (self.decay_per_update is None):
            raise UserError(
                "The averaged generator needs exactly one of ema.half_life_images and ema.decay_per_update.",
                "Set one to null: 'ema.half_life_images=null ema.decay_per_update=0.999' is the paper's.",
            )
        require_bounds(self, "ema.", half_life_images=">0", rampup=">0", decay_per_update=">=0 <1")
