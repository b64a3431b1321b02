"""Resampling, and the blend that fades new layers in.  N batch, C channels, R resolution."""

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.networks.activation import to_float32


def upsample(images: Tensor) -> Tensor:
    """Nearest-neighbour upsampling.  [N, C, R, R] -> [N, C, 2R, 2R]"""
    return F.interpolate(images, scale_factor=2, mode="nearest")


def downsample(images: Tensor) -> Tensor:
    """Mean of each 2x2 box.  [N, C, R, R] -> [N, C, R/2, R/2]"""
    return F.avg_pool2d(images, 2)


def fade(old: Tensor, new: Tensor, alpha: float | Tensor) -> Tensor:
    """`old` at alpha 0, `new` at alpha 1, both exactly; in between their blend, in float32.  (paper Figure 2)"""
    return torch.lerp(to_float32(old), to_float32(new), alpha).to(new.dtype)


def fading(alpha: float | Tensor) -> bool:
    """Whether there is anything to blend; a tensor may hold any weight, and reading it would wait for the device."""
    return isinstance(alpha, Tensor) or alpha < 1
