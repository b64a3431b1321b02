"""Keys of how a step is computed: they change speed and memory, and results by rounding only."""

from dataclasses import dataclass
from enum import StrEnum

from pggan.core.validation import require_bounds

# The type of activations and kernels; weights, losses and penalties stay in float32.
Precision = StrEnum("Precision", "auto fp32 tf32 bf16 fp16")
Kernels = StrEnum("Kernels", "auto reference")  # fast operations, or their plain twins
Switch = StrEnum("Switch", "auto on off")


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Keys of how the training step is computed."""

    kernels: Kernels = Kernels.auto
    micro_batch_size: int | None = None
    cuda_graphs: Switch = Switch.auto
    deterministic: bool = False

    def __post_init__(self) -> None:
        require_bounds(self, "compute.", micro_batch_size=">=1")
