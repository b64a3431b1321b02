"""Activations after a convolution, in few passes over memory: leaky ReLU, and pixel norm in the generator.

On CUDA, activations also add the layer's bias.  Whether a kernel does the work there (`fused.py`) or PyTorch's
operations do, the autograd Functions are the same: a kernel that fails changes nothing that autograd has recorded.
N batch, C features, R resolution.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from pggan.networks import fused
from pggan.networks.convolution import asks_weight_gradients

LEAKY_SLOPE = 0.2  # paper Table 2
EPSILON = 1e-8  # paper section 4.2
Activation = Callable[[Tensor, Tensor | None], Tensor]  # of x [N, C, …] and a bias [C] that is still to be added


def to_float32(x: Tensor) -> Tensor:
    """`x` in float32; unchanged in float32 and float64."""
    return x.float() if x.dtype.itemsize < 4 else x


def adds_bias(x: Tensor) -> bool:
    """Whether the activation is to add the bias of the layer that calculates `x`, which saves passes over memory."""
    return x.device.type == fused.DEVICE and not torch.compiler.is_compiling()


def activate(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Leaky ReLU of `x` [N, C, …], in place; or, in memory of its own, of `x` + `bias` [C]."""
    if bias is None:
        return F.leaky_relu_(x, LEAKY_SLOPE)
    return BiasAndActivation.apply(x, bias)  # type: ignore[no-any-return]


def pixel_norm(features: Tensor) -> Tensor:
    """Each pixel's feature vector (dimension 1) scaled to unit mean square, in float32.  (paper section 4.2)"""
    wide = to_float32(features)
    return (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPSILON)).to(features.dtype)


def activate_and_normalize(x: Tensor, bias: Tensor | None = None) -> Tensor:
    """Pixel norm of the leaky ReLU of `x` [N, C, R, R], or of `x` + `bias` [C], in place.

    Differentiable once, as a generator has to be.
    """
    if torch.compiler.is_compiling():  # the compiler fuses plain operations by itself
        return pixel_norm(F.leaky_relu(x, LEAKY_SLOPE))
    return ActivationAndNorm.apply(x, bias)  # type: ignore[no-any-return]


def per_feature(bias: Tensor, x: Tensor) -> Tensor:
    """`bias` [C] in the precision of `x` [N, C, …], and so that it can be added to it."""
    return bias.to(x.dtype).view(-1, *[1] * (x.ndim - 2))


def sum_per_feature(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The sums [C] of `x` [N, C, …] over images and pixels."""
    return x.sum((0, *range(2, x.ndim)), dtype=dtype)


class ActivationAndNorm(torch.autograd.Function):
    """Leaky ReLU, after a bias if there is one, and pixel norm.

    The backward pass needs the output, which the next layer saves anyway, and one number per pixel; the operations one
    by one would save four feature maps.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None) -> Tensor:
        scale = None
        if bias is not None:
            scale = fused.activate_and_normalize(x, bias, LEAKY_SLOPE, EPSILON)  # [N, 1, R, R]
            if scale is None:
                x.add_(per_feature(bias, x))
        if scale is None:
            F.leaky_relu_(x, LEAKY_SLOPE)
            wide = to_float32(x)
            scale = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
            scale = scale.square_().div_(x.shape[1]).add_(EPSILON).rsqrt_()
            x.copy_(wide.mul_(scale))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, scale)
        ctx.bias_dtype = None if bias is None else bias.dtype
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None]:
        """With y = scale * z, z the leaky ReLU: dL/dz = scale * (g - y * mean(g * y)); y has the sign of z."""
        y, scale = ctx.saved_tensors
        sums = ctx.needs_input_grad[1]
        if ctx.bias_dtype is not None:
            found = fused.grad_input(gradient, y, scale, LEAKY_SLOPE, sums=sums)
            if found is not None:
                return found
        wide, g = to_float32(y), to_float32(gradient)
        along = (g * wide).mean(1, keepdim=True)
        result = torch.addcmul(g, wide, along, value=-1).mul_(scale).to(gradient.dtype)
        result = torch.ops.aten.leaky_relu_backward(result, y, LEAKY_SLOPE, True)
        return result, sum_per_feature(result, ctx.bias_dtype) if sums else None


class BiasAndActivation(torch.autograd.Function):
    """Leaky ReLU of x [N, C, …] + bias [C], differentiable twice and in forward mode.  Saves its result alone."""

    @staticmethod
    def forward(x: Tensor, bias: Tensor) -> Tensor:
        y = fused.activate(x, bias, LEAKY_SLOPE)
        return F.leaky_relu_(x + per_feature(bias, x), LEAKY_SLOPE) if y is None else y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(output)
        if forward_ad._current_level >= 0:  # else, with activation checkpointing, the result would never be freed
            ctx.save_for_forward(output)
        ctx.set_materialize_grads(False)
        ctx.bias_dtype = inputs[1].dtype

    @staticmethod
    def jvp(ctx: Any, x: Tensor, bias: None) -> Tensor:
        """Only images have tangents: forward-mode AD serves gradient penalties."""
        assert bias is None
        (y,) = ctx.saved_tensors
        return ActivationGradient.apply(x, y.detach(), None)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        if gradient is None:
            return None, None
        apply: Callable[..., Any] = ActivationGradient.apply
        y = ctx.saved_tensors[0].detach()  # its sign alone counts: a second derivative need not pass through it
        if ctx.needs_input_grad[1] and asks_weight_gradients():
            for_x, for_bias = apply(gradient, y, ctx.bias_dtype)
            return for_x, for_bias
        return apply(gradient, y, None), None


class ActivationGradient(torch.autograd.Function):
    """Leaky ReLU's backward pass: the gradient [N, C, …] of x from that of y; with `sums`, also the bias gradient [C].

    Linear in the gradient and its own adjoint, and y counts by its sign only: so the derivative is the function itself.
    """

    @staticmethod
    def forward(gradient: Tensor, y: Tensor, sums: torch.dtype | None) -> Tensor | tuple[Tensor, Tensor]:
        found = fused.grad_input(gradient, y, None, LEAKY_SLOPE, sums=sums is not None)
        result = torch.ops.aten.leaky_relu_backward(gradient, y, LEAKY_SLOPE, True) if found is None else found[0]
        if sums is None:
            return result
        total = sum_per_feature(result, sums) if found is None or found[1] is None else found[1].to(sums)
        return result, total

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None, of_sums: Tensor | None = None) -> tuple[Tensor | None, ...]:
        (y,) = ctx.saved_tensors
        if of_sums is not None:
            spread = per_feature(of_sums, y).expand_as(y)
            gradient = spread if gradient is None else gradient + spread
        if gradient is None:
            return None, None, None
        return ActivationGradient.apply(gradient, y, None), None, None
