"""Resampling, and the blend that fades new layers in.  N batch, C channels, R resolution."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from pggan.networks import fused
from pggan.networks.activation import to_float32
from pggan.networks.cached_tensors import disable_fake_tensors


def upsample(images: Tensor) -> Tensor:
    """Nearest-neighbour upsampling.  [N, C, R, R] -> [N, C, 2R, 2R]"""
    return F.interpolate(images, scale_factor=2, mode="nearest")


def blur(features: Tensor) -> Tensor:
    """Features smoothed by [1, 2, 1] x [1, 2, 1]; weights of what is outside are left out.  [N, C, R, R] -> the same

    After nearest upsampling, it makes that bilinear: the low-pass filter of Karras et al. 2019, appendix C.
    """
    channels, side = features.shape[1], features.shape[-1]
    cached = not (torch.compiler.is_compiling() or isinstance(features, FakeTensor))
    kernel, share = (cached_filter if cached else low_pass_filter)(side, features.dtype, features.device)
    return F.conv2d(features, kernel.expand(channels, 1, 3, 3), padding=1, groups=channels) * share


def low_pass_filter(side: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The kernel [1, 1, 3, 3], whose sum is 1, and the inverse of its sum over what lies in an image, [R, R]."""
    binomial = torch.tensor([0.25, 0.5, 0.25], device=device)
    kernel = torch.outer(binomial, binomial)[None, None]
    inside = F.conv2d(torch.ones(1, 1, side, side, device=device), kernel, padding=1)  # exact
    return kernel.to(dtype), inside.to(torch.promote_types(dtype, torch.float32)).reciprocal()[0, 0].to(dtype)


@cache
def cached_filter(side: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The `low_pass_filter` of these arguments, made once and kept."""
    with disable_fake_tensors():
        return low_pass_filter(side, dtype, device)


def downsample(images: Tensor) -> Tensor:
    """Mean of each 2x2 box.  [N, C, R, R] -> [N, C, R/2, R/2]"""
    return F.avg_pool2d(images, 2)


def fade(old: Tensor, new: Tensor, alpha: float | Tensor) -> Tensor:
    """`old` at alpha 0, `new` at alpha 1, both exactly; in between their blend, in float32.  (paper Figure 2)"""
    if isinstance(alpha, Tensor) and new.device.type == fused.DEVICE and not torch.compiler.is_compiling():
        return Blend.apply(old, new, alpha)  # type: ignore[no-any-return]
    return torch.lerp(to_float32(old), to_float32(new), alpha).to(new.dtype)


def fading(alpha: float | Tensor) -> bool:
    """Whether there is anything to blend; a tensor may hold any weight, and reading it would wait for the device."""
    return isinstance(alpha, Tensor) or alpha < 1


class Blend(torch.autograd.Function):
    """A fade whose alpha [] is a tensor, differentiable twice and in forward mode, in one kernel where that works."""

    @staticmethod
    def forward(old: Tensor, new: Tensor, alpha: Tensor) -> Tensor:
        result = fused.blend(old, new, alpha)
        return torch.lerp(to_float32(old), to_float32(new), alpha).to(new.dtype) if result is None else result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])
        ctx.save_for_forward(inputs[2])

    @staticmethod
    def jvp(ctx: Any, old: Tensor, new: Tensor, alpha: None) -> Tensor:
        return Blend.apply(old, new, *ctx.saved_tensors)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return *BlendBackward.apply(gradient, *ctx.saved_tensors), None


class BlendBackward(torch.autograd.Function):
    """The adjoint of `Blend`, whose own adjoint is `Blend`."""

    @staticmethod
    def forward(gradient: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        shares = fused.blend_backward(gradient, alpha)
        if shares is not None:
            return shares
        wide = to_float32(gradient)
        return (wide * (1 - alpha)).to(gradient.dtype), (wide * alpha).to(gradient.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, of_old: Tensor, of_new: Tensor) -> tuple[Tensor, None]:
        return Blend.apply(of_old, of_new, *ctx.saved_tensors), None
