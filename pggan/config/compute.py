"""Keys of how a step is computed: they change speed and memory, and results by rounding only."""

from dataclasses import dataclass
from enum import StrEnum

from pggan.core.errors import UserError
from pggan.core.validation import require_bounds

# The type of activations and kernels; weights, losses and penalties stay in float32.
Precision = StrEnum("Precision", "auto fp32 tf32 bf16 fp16")
# How 3x3 convolutions are computed, and how gradient penalties are differentiated.
ConvolutionMethod = StrEnum("ConvolutionMethod", "auto heuristic native direct im2col winograd winograd2")
PenaltyStrategy = StrEnum("PenaltyStrategy", "auto autograd jvp")
Switch = StrEnum("Switch", "auto on off")


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Keys of how the training step is computed."""

    convolution: ConvolutionMethod = ConvolutionMethod.auto
    penalty: PenaltyStrategy = PenaltyStrategy.auto
    micro_batch_size: int | None = None
    activation_checkpointing: bool = False
    compile: bool = False
    cuda_graphs: Switch = Switch.auto
    deterministic: bool = False

    def __post_init__(self) -> None:
        require_bounds(self, "compute.", micro_batch_size=">=1")
        if self.compile and self.penalty is PenaltyStrategy.autograd:
            problem = "compute.compile=true can't differentiate a compiled pass twice (compute.penalty=autograd)."
            raise UserError(problem, "Set compute.penalty=jvp or auto.")
        possible = (ConvolutionMethod.auto, ConvolutionMethod.heuristic, ConvolutionMethod.native)
        if self.compile and self.convolution not in possible:
            problem = f"compute.compile=true does not work with compute.convolution={self.convolution}."
            raise UserError(problem, "Set compute.convolution=auto: a compiled pass uses PyTorch's own.")
        if self.activation_checkpointing and (self.compile or self.penalty is PenaltyStrategy.jvp):
            problem = "compute.activation_checkpointing=true needs compute.penalty=autograd and compute.compile=false."
            raise UserError(problem, "Set these two, or a smaller compute.micro_batch_size: it saves memory, too.")
