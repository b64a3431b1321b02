"""Metrics of features: FID, KID, precision and recall.

Features and distances are compared in float64.  Distances are calculated from products, ten times as fast as from
differences: between equal rows of length L, up to about 1e-7 L comes out instead of 0, because the root doubles the
share of digits that float64 rounds away.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from pggan.metrics.base import FeatureMetric

DISTANCE_ROWS = 1024  # whose distances to all others are held at once
KERNEL_ROWS = 2048  # likewise of the kernel
NEIGHBOURS = 3


def distance_blocks(a: Tensor, b: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Euclidean distances of a block of rows of `a` [N, F] to all of `b` [M, F], with the number of the first row."""
    for start in range(0, len(a), DISTANCE_ROWS):
        rows = a[start : start + DISTANCE_ROWS].double()
        yield start, torch.cdist(rows, b.double(), compute_mode="use_mm_for_euclid_dist")


def nearest_others(a: Tensor, count: int = 1) -> Tensor:
    """Distances float64 [N, count] of each of `a` [N, F] to the nearest other rows."""
    found = []
    for start, block in distance_blocks(a, a):
        block.diagonal(start).fill_(torch.inf)
        found.append(block.topk(count, largest=False).values)
    return torch.cat(found)


class PrecisionRecall(FeatureMetric):
    """Improved precision and recall (Kynkaanniemi et al. 2019), k = 3: `precision` and `recall`.

    Around every image of a set lies a ball in feature space that reaches to its third nearest neighbour in the same
    set.  Precision is the share of fakes in a ball of the reals: quality.  Recall is the share of reals in a ball of
    the fakes: variety.  Both are in [0, 1], and higher is better.  The paper takes 50,000 images and VGG-16's features.
    """

    key = "precision_recall"
    paper_images = 50_000
    least_images = 20  # the third nearest of few is among the farthest: with 4 images, all is covered or nothing

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        return self.named("precision", covered(fakes, reals)) | self.named("recall", covered(reals, fakes))


def covered(points: Tensor, centres: Tensor) -> float:
    """The share of `points` [N, F] that lie in a ball around one of `centres` [M, F]."""
    radii = nearest_others(centres, NEIGHBOURS)[:, -1]
    inside = [(block <= radii).any(1) for _, block in distance_blocks(points, centres)]
    return float(torch.cat(inside).double().mean())


class KernelInceptionDistance(FeatureMetric):
    """Kernel inception distance (Binkowski et al. 2018, section 4), times 1000: `kid`, and `kid_floor`.

    The squared maximum mean discrepancy between features under the kernel (x . y / F + 1)^3, in its unbiased form, of
    all images of one set against all of the other, rather than the mean over random subsets of 1000: its expectation is
    the same, its variance smaller, and nothing is left to chance.  Because it is unbiased, numbers of different counts
    can be compared; a perfect generator has 0 on average, and negative numbers occur.  The floor is the number of one
    half of the reals against the other half.
    """

    key = "kid"
    paper_images = 50_000
    least_images = 16  # the floor compares 8 with 8

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        middle = self.count // 2
        floor = kernel_distance(reals[:middle], reals[middle : 2 * middle])
        return self.named("kid", kernel_distance(fakes, reals)) | self.named("kid_floor", floor, middle)


def kernel_sum(a: Tensor, b: Tensor) -> Tensor:
    """The sum of the kernel over all rows of `a` [N, F] with all of `b` [M, F], float64."""
    parts = [(((rows @ b.T) / a.shape[1] + 1) ** 3).sum() for rows in torch.split(a, KERNEL_ROWS)]
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


class FrechetInceptionDistance(FeatureMetric):
    """Frechet inception distance (Heusel et al. 2017), between Gaussians with the moments of two feature sets: `fid`.

    |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)), covariances with N - 1.  With R1 and R2 the triangular factors of the
    centred features, S = R^T R / (N - 1), the eigenvalues of S1 S2 are the squared singular values of R1 R2^T up to
    that factor.  So the trace of the root is a sum of singular values: it is real and stable also where covariances
    are singular, as with fewer images than features.

    Published numbers have extractor=inception and 50,000 fakes beside as many reals, or beside all of a smaller set
    (the official code of progressive GANs repeats them up to 50,000, and mirrors them where training does; here they
    are taken once, as they are).  With other features or fewer images the number is another one: it is biased upwards,
    the more the fewer images there are.  KID is not.
    """

    key = "fid"
    paper_images = 50_000
    least_images = 16  # as of SWD
    takes_more_fakes = True

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        return self.named("fid", frechet_distance(fakes, reals))


def gaussian_of(features: Tensor) -> tuple[Tensor, Tensor]:
    """Mean [F] and a factor R [min(N, F), F] of the covariance R^T R of features [N, F], in float64."""
    features = features.double()
    mean = features.mean(0)
    factor = torch.linalg.qr(features - mean, mode="r").R
    return mean, factor / (len(features) - 1) ** 0.5


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """FID between features [N, F] and [M, F], of at least two images each."""
    (mean_x, factor_x), (mean_y, factor_y) = gaussian_of(x), gaussian_of(y)
    root = torch.linalg.svdvals(factor_x @ factor_y.T).sum()
    return float((mean_x - mean_y).square().sum() + factor_x.square().sum() + factor_y.square().sum() - 2 * root)
