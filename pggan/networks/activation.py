"""What follows a convolution, in as few passes over memory as possible: leaky ReLU, and pixel norm in the generator.

N batch, C features, R resolution.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

LEAKY_SLOPE = 0.2  # paper Table 2
EPSILON = 1e-8  # paper section 4.2


def to_float32(x: Tensor) -> Tensor:
    """`x` in float32; unchanged in float32 and float64."""
    return x.float() if x.dtype.itemsize < 4 else x


def activate(x: Tensor) -> Tensor:
    """Leaky ReLU in place: `x` is overwritten."""
    return F.leaky_relu_(x, LEAKY_SLOPE)


def pixel_norm(features: Tensor) -> Tensor:
    """Each pixel's feature vector (dimension 1) scaled to unit mean square, in float32.  (paper section 4.2)"""
    wide = to_float32(features)
    return (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPSILON)).to(features.dtype)


def activate_and_normalize(x: Tensor) -> Tensor:
    """Pixel norm of the leaky ReLU of `x` [N, C, R, R], in place.  Differentiable once, as a generator has to be."""
    if torch.compiler.is_compiling():  # the compiler fuses plain operations by itself
        return pixel_norm(F.leaky_relu(x, LEAKY_SLOPE))
    return ActivationAndNorm.apply(x)  # type: ignore[no-any-return, no-untyped-call]


class ActivationAndNorm(torch.autograd.Function):
    """Saves the result, which the next layer saves anyway, and one number per pixel; autograd would save 4 maps."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        F.leaky_relu_(x, LEAKY_SLOPE)
        wide = to_float32(x)
        scale = torch.linalg.vector_norm(wide, dim=1, keepdim=True)  # [N, 1, R, R]
        scale = scale.square_().div_(x.shape[1]).add_(EPSILON).rsqrt_()
        x.copy_(wide.mul_(scale))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, scale)
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """With y = scale * z, z the leaky ReLU: dL/dz = scale * (g - y * mean(g * y)); y has the sign of z."""
        y, scale = ctx.saved_tensors
        wide, g = to_float32(y), to_float32(gradient)
        along = (g * wide).mean(1, keepdim=True)
        result = torch.addcmul(g, wide, along, value=-1).mul_(scale).to(gradient.dtype)
        return torch.ops.aten.leaky_relu_backward(result, y, LEAKY_SLOPE, True)  # type: ignore[no-any-return]
