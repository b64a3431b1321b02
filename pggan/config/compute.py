"""Keys about how a step is calculated: they change its speed, its memory, and its results by rounding only."""

from dataclasses import dataclass
from enum import Enum

from pggan.core.errors import UserError
from pggan.core.validation import require


class Precision(Enum):
    """What activations and kernels are calculated in; weights, losses and penalties stay in float32."""

    auto = "auto"
    fp32 = "fp32"
    tf32 = "tf32"
    bf16 = "bf16"
    fp16 = "fp16"


class ConvolutionMethod(Enum):
    """How 3x3 convolutions are calculated."""

    auto = "auto"
    native = "native"
    direct = "direct"
    columns = "columns"
    winograd = "winograd"


class PenaltyPath(Enum):
    """How the gradient of a gradient penalty is calculated."""

    auto = "auto"
    autograd = "autograd"
    tangent = "tangent"


class Switch(Enum):
    """Something that is on, off, or decided by the program."""

    auto = "auto"
    on = "on"
    off = "off"


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Choices that change speed and memory, and results by rounding only."""

    convolution: ConvolutionMethod
    penalty: PenaltyPath
    micro_batch: int | None
    recompute: bool
    compile: bool
    cuda_graphs: Switch

    def __post_init__(self) -> None:
        micro = self.micro_batch
        require(micro is None or micro >= 1, "compute.micro_batch", micro, "at least 1, or null")
        tangent = self.penalty is not PenaltyPath.autograd
        if self.compile and not tangent:
            raise UserError(
                "compute.compile=true can't differentiate a compiled pass twice (compute.penalty=autograd).",
                "Take compute.penalty=tangent or auto.",
            )
        if self.compile and self.convolution not in (ConvolutionMethod.auto, ConvolutionMethod.native):
            raise UserError(
                f"compute.compile=true can't be had with compute.convolution={self.convolution.value}.",
                "Take compute.convolution=auto: a compiled pass uses PyTorch's own.",
            )
        if self.recompute and (self.compile or self.penalty is PenaltyPath.tangent):
            raise UserError(
                "compute.recompute=true needs compute.penalty=autograd and compute.compile=false.",
                "Set these two, or take smaller micro-batches: they save memory, too.",
            )

    def require_whole_groups(self, group: int) -> None:
        """Raise UserError unless micro-batches hold whole groups of minibatch stddev."""
        if self.micro_batch is not None and self.micro_batch % group:
            raise UserError(
                f"compute.micro_batch={self.micro_batch} does not divide into groups of model.stddev_group={group}.",
                f"Take {max(self.micro_batch // group, 1) * group}.",
            )
