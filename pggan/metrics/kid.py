"""Kernel inception distance (Binkowski et al. 2018, section 4), times 1000.

The squared maximum mean discrepancy between features under the kernel (x . y / F + 1)^3, in its unbiased form, of all
images of one set against all of the other, rather than the mean over random subsets of 1000: its expectation is the
same, its variance smaller, and nothing is left to chance.  Because it is unbiased, numbers of different counts can be
compared; a perfect generator has 0 on average, and negative numbers occur.

The floor is the number of one half of the reals against the other half.
"""

from typing import Any

import torch
from torch import Tensor

from pggan.metrics.base import FeatureMetric

ROWS = 2048  # of the kernel that are held at once


def kernel_sum(a: Tensor, b: Tensor) -> Tensor:
    """The sum of the kernel over all rows of `a` [N, F] with all of `b` [M, F], float64."""
    parts = [(((rows @ b.T) / a.shape[1] + 1) ** 3).sum() for rows in torch.split(a, ROWS)]
    return torch.stack(parts).sum()


def mean_of_pairs(a: Tensor) -> Tensor:
    """The mean of the kernel over all pairs of different rows of `a` [N, F]."""
    diagonal = ((a.square().sum(1) / a.shape[1] + 1) ** 3).sum()
    return (kernel_sum(a, a) - diagonal) / (len(a) * (len(a) - 1))


def kernel_distance(x: Tensor, y: Tensor) -> float:
    """KID times 1000 between features [N, F] and [M, F], of at least two images each."""
    x, y = x.double(), y.double()
    across = kernel_sum(x, y) / (len(x) * len(y))
    return 1000 * float(mean_of_pairs(x) + mean_of_pairs(y) - 2 * across)


class KernelInceptionDistance(FeatureMetric):
    """`kid`, and `kid_floor` of half as many reals on each side."""

    key = "kid"
    paper_images = 50_000
    least_images = 16  # the floor compares 8 with 8

    def parameters(self) -> dict[str, Any]:
        return {"degree": 3, "offset": 1, "subsets": "all against all", "times": 1000}

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        middle = self.count // 2
        floor = kernel_distance(reals[:middle], reals[middle : 2 * middle])
        return self.named("kid", kernel_distance(fakes, reals)) | self.named("kid_floor", floor, middle)
