"""Resampling, and the blend that fades new layers in.  N batch, C channels, R resolution."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.ops import fused, is_reference, to_float32


def upsample(images: Tensor) -> Tensor:
    """Nearest-neighbour upsampling.  [N, C, R, R] -> [N, C, 2R, 2R]"""
    return F.interpolate(images, scale_factor=2, mode="nearest")


def downsample(images: Tensor) -> Tensor:
    """Mean of each 2x2 box.  [N, C, R, R] -> [N, C, R/2, R/2]"""
    return F.avg_pool2d(images, 2)


def fade(old: Tensor, new: Tensor, alpha: float | Tensor) -> Tensor:
    """`old` at alpha 0, `new` at alpha 1, both exactly; in between their blend, in float32.  (paper Figure 2)"""
    on_gpu = isinstance(alpha, Tensor) and new.device.type == "cuda" and old.dtype == new.dtype
    if on_gpu and not is_reference() and fused.works() and new.shape[1] <= fused.WIDEST:
        return fused.blend(old, new, alpha)  # type: ignore[arg-type]
    return torch.lerp(to_float32(old), to_float32(new), alpha).to(new.dtype)


def fading(alpha: float | Tensor) -> bool:
    """Whether there is anything to blend; a tensor may hold any weight, and reading it would wait for the device."""
    return isinstance(alpha, Tensor) or alpha < 1


def blur(features: Tensor) -> Tensor:
    """Features smoothed by [1, 2, 1] x [1, 2, 1]; weights of what is outside are left out.  [N, C, R, R] -> the same

    After nearest upsampling, it makes that bilinear: the low-pass filter of Karras et al. 2019, appendix C.
    """
    channels, side = features.shape[1], features.shape[-1]
    kernel, share = low_pass_filter(side, features.dtype, features.device)
    return F.conv2d(features, kernel.expand(channels, 1, 3, 3), padding=1, groups=channels) * share


@cache  # on a GPU, the operations that make it start slower than they run
def low_pass_filter(side: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The kernel [1, 1, 3, 3], whose sum is 1, and the inverse of its sum over what lies in an image, [R, R]."""
    binomial = torch.tensor([0.25, 0.5, 0.25], device=device)
    kernel = torch.outer(binomial, binomial)[None, None]
    inside = F.conv2d(torch.ones(1, 1, side, side, device=device), kernel, padding=1)  # exact
    return kernel.to(dtype), inside.to(torch.promote_types(dtype, torch.float32)).reciprocal()[0, 0].to(dtype)
