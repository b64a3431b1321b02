"""Two filters of the 3x3 neighbourhood: a low-pass filter of features, and a bilateral filter of images.

N batch, C channels, R resolution.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.ops.convolution import Switches

SIGMA = 10 / 127.5  # standard deviation of the bilateral weight over colour distances: 10 of 255 grey levels
FACTOR = -1 / (2 * SIGMA**2)  # multiplies the squared colour distance in the exponent
ALL, FRONT, BACK = slice(None), slice(None, -1), slice(1, None)
# Slices of all pixels, and of their neighbours, in four of eight directions: every pair of neighbours comes once.
PAIRS = (
    ((..., ALL, FRONT), (..., ALL, BACK)),
    ((..., FRONT, ALL), (..., BACK, ALL)),
    ((..., FRONT, FRONT), (..., BACK, BACK)),
    ((..., FRONT, BACK), (..., BACK, FRONT)),
)


def blur(features: Tensor) -> Tensor:
    """Smooth features by weights [1, 2, 1] x [1, 2, 1]; edges leave out outer weights.  [N, C, R, R] -> the same shape

    Nearest-neighbour upsampling and this filter are bilinear upsampling together (Karras et al. 2019, appendix C).
    """
    channels, side = features.shape[1], features.shape[-1]
    kernel, share = low_pass_filter(side, features.dtype, features.device)
    return F.conv2d(features, kernel.expand(channels, 1, 3, 3), padding=1, groups=channels) * share


@cache  # on a GPU, launching the kernels of this function takes longer than running them
def low_pass_filter(side: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The kernel [1, 1, 3, 3] with sum 1, and for each pixel [R, R] the inverse sum of its weights inside the image."""
    binomial = torch.tensor([0.25, 0.5, 0.25], device=device)
    kernel = torch.outer(binomial, binomial)[None, None]
    inside = F.conv2d(torch.ones(1, 1, side, side, device=device), kernel, padding=1)  # exact
    return kernel.to(dtype), inside.to(torch.promote_types(dtype, torch.float32)).reciprocal()[0, 0].to(dtype)


def bilateral(images: Tensor, passes: int) -> Tensor:
    """Replace each pixel, `passes` times, by a mean of itself and its neighbours.  [N, C, R, R] -> the same shape

    A neighbour's weight is exp(-d^2 / (2 SIGMA^2)), where d is the distance of the two colours.  So similar neighbours
    become more alike, and edges stay.  Differentiable once.
    Source: Tomasi and Manduchi, "Bilateral Filtering for Gray and Color Images" (ICCV 1998).
    """
    for _ in range(passes):
        images = filter_once(images)[0] if Switches.reference else Bilateral.apply(images)
    return images


def filter_once(images: Tensor) -> tuple[Tensor, Tensor]:
    """The images after one pass [N, C, R, R], and the sum of the weights of each pixel [N, 1, R, R]."""
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
    """The colour differences of pixels and their neighbours, and the neighbours' weights."""
    difference = images[other] - images[one]
    return difference, difference.square().sum(1, keepdim=True).mul_(FACTOR).exp_()


class Bilateral(torch.autograd.Function):
    """One pass of the bilateral filter.  [N, C, R, R] -> the same shape

    The gradient is written by hand, which takes half the time of autograd's.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        images = images.contiguous()
        filtered, total = filter_once(images)
        ctx.save_for_backward(images, filtered, total)
        return filtered

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """The gradient of y = x + p / t, where p is the weighted sum of differences and t the sum of the weights."""
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
