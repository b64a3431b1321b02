"""A 3x3 low-pass filter for features, and a 3x3 bilateral filter for images.  Shapes: N batch, C channels, R side."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.ops.convolution import Switches

SIGMA = 10 / 127.5  # in the bilateral filter, this colour distance (10 of 255 levels) gives the weight exp(-1/2)
FACTOR = -1 / (2 * SIGMA**2)  # a neighbour's weight is exp(FACTOR * squared colour distance)
ALL, FRONT, BACK = slice(None), slice(None, -1), slice(1, None)
# Each entry of PAIRS is one of 4 directions: (index of pixels, index of the neighbours of these pixels).
PAIRS = (
    ((..., ALL, FRONT), (..., ALL, BACK)),
    ((..., FRONT, ALL), (..., BACK, ALL)),
    ((..., FRONT, FRONT), (..., BACK, BACK)),
    ((..., FRONT, BACK), (..., BACK, FRONT)),
)


def blur(features: Tensor) -> Tensor:
    """Smooth features [N, C, R, R] by 3x3 weights [1, 2, 1] x [1, 2, 1], normalised over the pixels inside the image.

    Nearest-neighbour upsampling followed by this filter is bilinear upsampling (Karras et al. 2019, appendix C).
    """
    channels, side = features.shape[1], features.shape[-1]
    kernel, share = low_pass_filter(side, features.dtype, features.device)
    return F.conv2d(features, kernel.expand(channels, 1, 3, 3), padding=1, groups=channels) * share


@cache  # cached, because launching several CUDA kernels is slow
def low_pass_filter(side: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The kernel [1, 1, 3, 3] of `blur`, and factors [R, R] that compensate for weights outside the image borders."""
    binomial = torch.tensor([0.25, 0.5, 0.25], device=device)
    kernel = torch.outer(binomial, binomial)[None, None]
    inside = F.conv2d(torch.ones(1, 1, side, side, device=device), kernel, padding=1)  # exact sums, even in TF32
    return kernel.to(dtype), inside.to(torch.promote_types(dtype, torch.float32)).reciprocal()[0, 0].to(dtype)


def bilateral(images: Tensor, passes: int) -> Tensor:
    """Replace each pixel of images [N, C, R, R], `passes` times, by a weighted mean of the pixel and its 8 neighbours.

    Neighbours of similar colour have more weight, so edges stay.  The result can be differentiated only once.
    Source: Tomasi and Manduchi, "Bilateral Filtering for Gray and Color Images" (ICCV 1998).
    """
    for _ in range(passes):
        images = filter_once(images)[0] if Switches.reference else Bilateral.apply(images)
    return images


def filter_once(images: Tensor) -> tuple[Tensor, Tensor]:
    """The images [N, C, R, R] after one pass of the bilateral filter, and each pixel's sum of weights [N, 1, R, R]."""
    pull, total = torch.zeros_like(images), torch.ones_like(images[:, :1])
    for one, other in PAIRS:
        difference, weight = weighted_difference(images, one, other)
        total[one] += weight
        total[other] += weight
        weighted = difference * weight
        pull[one] += weighted
        pull[other] -= weighted
    return images + pull / total, total


def weighted_difference(images: Tensor, one: Any, other: Any) -> tuple[Tensor, Tensor]:
    """Return the differences `images[other]` - `images[one]`, and the bilateral filter's weight of each difference."""
    difference = images[other] - images[one]
    return difference, difference.square().sum(1, keepdim=True).mul_(FACTOR).exp_()


class Bilateral(torch.autograd.Function):
    """One pass of the bilateral filter, with a backward pass that is twice as fast as autograd's."""

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        images = images.contiguous()
        filtered, total = filter_once(images)
        ctx.save_for_backward(images, filtered, total)
        return filtered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        images, filtered, total = ctx.saved_tensors
        of_pull = gradient / total
        of_total = (of_pull * (images - filtered)).sum(1, keepdim=True)
        result = gradient.clone()
        for one, other in PAIRS:
            difference, weight = weighted_difference(images, one, other)
            of_difference = of_pull[one] - of_pull[other]
            of_weight = (of_difference * difference).sum(1, keepdim=True).add_(of_total[one]).add_(of_total[other])
            of_difference.addcmul_(difference, of_weight, value=2 * FACTOR).mul_(weight)
            result[other] += of_difference
            result[one] -= of_difference
        return result
