"""Activations after a convolution, in few passes over memory: leaky ReLU, and pixel norm in the generator.

On CUDA, activations also add the layer's bias, in kernels of `fused.py`.  N batch, C features, R resolution.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.ops import fused, is_reference, to_float32

LEAKY_SLOPE = 0.2  # paper Table 2
EPSILON = 1e-8  # paper section 4.2
Activation = Callable[[Tensor, Tensor | None], Tensor]  # of x [N, C, …] and a bias [C] that is still to be added


def adds_bias(bias: Tensor) -> bool:
    """Whether the activation is to add the `bias` [C] of its layer, which saves passes over memory."""
    return bias.device.type == "cuda" and not is_reference() and bias.numel() <= fused.WIDEST and fused.works()


def activate(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Leaky ReLU of `x` [N, C, …], in place; or, in memory of its own, of `x` + `bias` [C]."""
    if is_reference():
        return F.leaky_relu(x, LEAKY_SLOPE)
    return F.leaky_relu_(x, LEAKY_SLOPE) if bias is None else fused.bias_act(x, bias, LEAKY_SLOPE)


def pixel_norm(features: Tensor) -> Tensor:
    """Each pixel's feature vector (dimension 1) scaled to unit mean square, in float32.  (paper section 4.2)"""
    wide = to_float32(features)
    return (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPSILON)).to(features.dtype)


def activate_and_normalize(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Pixel norm of the leaky ReLU of `x` [N, C, R, R], or of `x` + `bias` [C], in place.

    Differentiable once, as a generator has to be.
    """
    if is_reference():
        return pixel_norm(F.leaky_relu(x, LEAKY_SLOPE))
    return ActivationAndNorm.apply(x, bias)  # type: ignore[no-any-return]


class ActivationAndNorm(torch.autograd.Function):
    """Leaky ReLU, after a bias if there is one, and pixel norm.

    The backward pass needs the output, which the next layer saves anyway, and one number per pixel; the operations one
    by one would save four feature maps.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        if bias is None:
            F.leaky_relu_(x, LEAKY_SLOPE)
            wide = to_float32(x)
            scale = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
            scale = scale.square_().div_(x.shape[1]).add_(EPSILON).rsqrt_()
            x.copy_(wide.mul_(scale))
        else:
            scale = fused.bias_act_norm_(x, bias, LEAKY_SLOPE, EPSILON)  # [N, 1, R, R]
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, scale)
        ctx.has_bias = bias is not None
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """With y = scale * z, z the leaky ReLU: dL/dz = scale * (g - y * mean(g * y)); y has the sign of z."""
        y, scale = ctx.saved_tensors
        if ctx.has_bias:
            return fused.bias_act_backward(gradient, y, scale, LEAKY_SLOPE, sums=ctx.needs_input_grad[1])
        wide, g = to_float32(y), to_float32(gradient)
        along = (g * wide).mean(1, keepdim=True)
        result = torch.addcmul(g, wide, along, value=-1).mul_(scale).to(gradient.dtype)
        return torch.ops.aten.leaky_relu_backward(result, y, LEAKY_SLOPE, True), None
