"""Activations, pixel norm, resampling, fade between resolutions.  Shapes: N batch size, C features, R resolution."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.ops import fused
from pggan.ops.convolution import Switches
from pggan.ops.fused import EPSILON, LEAKY_SLOPE, Rows
from pggan.ops.products import LinearMap

# Arguments: x [N, C, …]; a bias [C] or None; with a bias, a function that returns the buffer of the bias's gradient.
Activation = Callable[[Tensor, Tensor | None, Rows | None], Tensor]


def to_float32(x: Tensor) -> Tensor:
    """Convert `x` from 16 bits to float32; return float32 and float64 unchanged."""
    return x.float() if x.dtype.itemsize < 4 else x


def serves(tensor: Tensor) -> bool:
    """Whether operations on `tensor` use Triton kernels."""
    return not Switches.reference and tensor.device.type == "cuda" and fused.problem() is None


def activate(x: Tensor, bias: Tensor | None = None, rows: Rows | None = None) -> Tensor:
    """Return the leaky ReLU of `x` [N, C, …] + `bias` [C]; without `bias`, overwrite `x` with the leaky ReLU of `x`."""
    if Switches.reference:
        return F.leaky_relu(x, LEAKY_SLOPE)
    if bias is None:
        return F.leaky_relu_(x, LEAKY_SLOPE)
    return fused.BiasAct.apply(x, bias, rows)  # type: ignore[no-any-return]


def pixel_norm(features: Tensor) -> Tensor:
    """Scale each pixel's feature vector (dimension 1) to unit mean square, in float32.  (paper section 4.2)"""
    if serves(features) and not features.requires_grad:  # G's latents need no gradient
        return fused.pixel_norm(features)
    wide = to_float32(features)
    return (wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPSILON)).to(features.dtype)


def activate_and_normalize(x: Tensor, bias: Tensor | None = None, rows: Rows | None = None) -> Tensor:
    """Set `x` [N, C, R, R] to the pixel norm of the leaky ReLU of `x` + `bias` [C]; can be differentiated only once."""
    if Switches.reference:
        return pixel_norm(F.leaky_relu(x, LEAKY_SLOPE))
    return ActivationAndNorm.apply(x, bias, rows)  # type: ignore[no-any-return]


class ActivationAndNorm(torch.autograd.Function):
    """Bias, leaky ReLU and pixel norm in one autograd function; three functions store four tensors of x's size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor | None, rows: Rows | None) -> Tensor:
        if bias is None:
            F.leaky_relu_(x, LEAKY_SLOPE)
            wide = to_float32(x)
            scale = torch.linalg.vector_norm(wide, dim=1, keepdim=True)
            scale = scale.square_().div_(x.shape[1]).add_(EPSILON).rsqrt_()
            x.copy_(wide.mul_(scale))
        else:
            scale = fused.bias_act_norm_(x, bias)  # [N, 1, R, R]
        ctx.mark_dirty(x)
        ctx.save_for_backward(x, scale)
        ctx.rows = rows
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """The gradient of x.  For z = leaky ReLU, y = scale * z, g = dL/dy: dL/dz = scale * (g - y * mean(g * y))."""
        y, scale = ctx.saved_tensors
        if ctx.rows is not None:
            rows = ctx.rows() if ctx.needs_input_grad[1] else None
            return fused.bias_act_backward(y, gradient, scale, rows), None, None
        wide, g = to_float32(y), to_float32(gradient)
        along = (g * wide).mean(1, keepdim=True)
        result = torch.addcmul(g, wide, along, value=-1).mul_(scale).to(gradient.dtype)
        result = torch.ops.aten.leaky_relu_backward(result, y, LEAKY_SLOPE, True)  # y's sign decides leaky ReLU's slope
        return result, None, None


def upsample(images: Tensor) -> Tensor:
    """Nearest-neighbour upsampling.  [N, C, R, R] -> [N, C, 2R, 2R]"""
    return F.interpolate(images, scale_factor=2, mode="nearest")


def downsample(images: Tensor) -> Tensor:
    """Mean of each 2x2 box.  [N, C, R, R] -> [N, C, R/2, R/2]"""
    return F.avg_pool2d(images, 2)


def fade(old: Tensor, new: Tensor, alpha: float | Tensor) -> Tensor:
    """The blend (1 - alpha) * `old` + alpha * `new`, in float32; exact at alpha 0 and 1.  (paper Figure 2)"""
    if isinstance(alpha, Tensor) and old.dtype == new.dtype and serves(new) and new.shape[1] <= fused.WIDEST:
        return LinearMap.apply(fused.blend, fused.blend_backward, alpha, old, new)  # type: ignore[no-any-return]
    return torch.lerp(to_float32(old), to_float32(new), alpha).to(new.dtype)


def fading(alpha: float | Tensor) -> bool:
    """Whether layers fade in (`alpha` < 1).  True for any tensor, because reading a tensor would wait for the GPU."""
    return isinstance(alpha, Tensor) or alpha < 1
