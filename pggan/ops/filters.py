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

SIGMA = 10 / 127.5  # standard deviation of the bilateral weight over distances of colours: ten of 255 grey levels
FACTOR = -1 / (2 * SIGMA**2)  # of squared distances, in the exponent
ALL, FRONT, BACK = slice(None), slice(None, -1), slice(1, None)
# Rows and columns of a pixel, and of its neighbour, in each of the four directions: every pair of neighbours once.
PAIRS = (
    ((..., ALL, FRONT), (..., ALL, BACK)),
    ((..., FRONT, ALL), (..., BACK, ALL)),
    ((..., FRONT, FRONT), (..., BACK, BACK)),
    ((..., FRONT, BACK), (..., BACK, FRONT)),
)


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


def bilateral(images: Tensor, passes: int) -> Tensor:
    """`images`, each pixel replaced `passes` times by a mean of itself and its neighbours.  [N, C, R, R] -> the same

    Neighbours of nearly the same colour become more alike, edges stay: a neighbour's weight is exp(-d^2 / (2 SIGMA^2)),
    where d is the distance of the two colours.  Differentiable once.
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
    """The differences of neighbours, and their weights."""
    difference = images[other] - images[one]
    return difference, difference.square().sum(1, keepdim=True).mul_(FACTOR).exp_()


class Bilateral(torch.autograd.Function):
    """One pass of the filter.  [N, C, R, R] -> the same

    Its gradient is written out, which takes half the time of the gradients of all operations.
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
        """With y = x + p / t, p the weighted sum of differences and t the sum of the weights."""
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
