"""Metrics that compare features of images: FID, KID, precision and recall, and nearest training images."""

from abc import abstractmethod
from collections.abc import Iterator
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from pggan.metrics import Metric, Task, label
from pggan.sampling.images import Pixels, contact_sheet

DISTANCE_ROWS = 1024  # rows of a distance matrix that are in memory at once
KERNEL_ROWS = 2048  # rows of KID's kernel matrix that are in memory at once
NEIGHBOURS = 3
QUANTILE = 0.05  # quantile of the distances from a real to the nearest other real; a fake nearer to a real is a copy
# Because of rounding, features of equal images differ by at most SAME_IMAGE times the mean norm of all features.
# A deep network makes about 2^18 rounding errors of 2^-24 with random signs; these add up to 2^-15, half of SAME_IMAGE.
SAME_IMAGE = 2.0**-14
ROWS = 8  # A picture shows the 8 fakes that are nearest to training images.
SHOWN = 4  # A picture shows each fake beside the fake's 4 nearest training images.


def distance_blocks(others: Tensor, *orientations: Tensor) -> Iterator[tuple[int, Tensor]]:
    """For each block of B images, yield the index of the first image, and the B x M distances to `others` [M, F].

    `orientations` are features [N, F] of the images and, if given, of the mirrored images; the smaller distance counts.
    """
    for start in range(0, len(orientations[0]), DISTANCE_ROWS):
        rows = [one[start : start + DISTANCE_ROWS].double() for one in orientations]
        # A matrix product makes `cdist` ten times as fast, but equal features of norm L may have a distance of 1e-7 L.
        blocks = (torch.cdist(one, others.double(), compute_mode="use_mm_for_euclid_dist") for one in rows)
        yield start, reduce(torch.minimum, blocks)


class Comparison(Metric):
    """Base class: compares features of `count` fakes with features of `count` reals, or of all reals if fewer exist."""

    uses_extractor = True

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.fakes = task.of_fakes(task.extractor.features, count)

    def values(self) -> dict[str, float]:
        task, name = self.task, self.task.extractor.name
        reals = task.of_reals(task.extractor.features, min(self.count, task.reals.pyramid.images))
        fakes = self.fakes.rows()[: self.count]
        found = self.compare(*task.precise(fakes, reals)) if task.partition.group.is_main else {}
        return {label(metric, name, count): value for metric, (value, count) in found.items()}

    @abstractmethod
    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, tuple[float, int]]:
        """Compare the features [N, F] of fakes and reals; returns {metric name: (value, number of images)}."""


class PrecisionRecall(Comparison):
    """Improved precision and recall (Kynkaanniemi et al. 2019) with k = 3.

    Each image has a ball in feature space, which reaches to the third nearest image of the same set.  Precision is the
    share of fakes in balls of reals (quality); recall is the share of reals in balls of fakes (variety).
    """

    paper_images = 50_000
    least_images = 20  # With fewer images, an image's ball in feature space would hold nearly all other images.

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, tuple[float, int]]:
        return {"precision": (covered(fakes, reals), self.count), "recall": (covered(reals, fakes), self.count)}


def covered(points: Tensor, centres: Tensor) -> float:
    """Share of `points` [N, F] in balls around `centres` [M, F]; a ball reaches the third nearest other centre."""
    radii = []
    for start, block in distance_blocks(centres, centres):
        block.diagonal(start).fill_(torch.inf)
        radii.append(block.topk(NEIGHBOURS, largest=False).values[:, -1])
    inside = [(block <= torch.cat(radii)).any(1) for _, block in distance_blocks(centres, points)]
    return float(torch.cat(inside).double().mean())


class KernelInceptionDistance(Comparison):
    """Kernel inception distance (Binkowski et al. 2018, section 4) times 1000.

    KID is the unbiased estimate of the squared maximum mean discrepancy (MMD) with the kernel (x . y / F + 1)^3, here
    over all images instead of random subsets.  A perfect generator has KID 0 on average, so negative KIDs occur.
    """

    paper_images = 50_000
    least_images = 16  # The value `kid_floor` is the KID of two halves of the reals, each of at least 8 images.
    decides = "kid"

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, tuple[float, int]]:
        middle = self.count // 2
        floor = kernel_distance(reals[:middle], reals[middle : 2 * middle])
        return {"kid": (kernel_distance(fakes, reals), self.count), "kid_floor": (floor, middle)}


def kernel_sum(a: Tensor, b: Tensor) -> Tensor:
    """The sum of KID's kernel over all N x M pairs of rows in `a` [N, F] and `b` [M, F]."""
    parts = [(((rows @ b.T) / a.shape[1] + 1) ** 3).sum() for rows in torch.split(a, KERNEL_ROWS)]
    return torch.stack(parts).sum()


def mean_of_pairs(a: Tensor) -> Tensor:
    """The mean of KID's kernel over all pairs of two different rows in `a` [N, F]."""
    diagonal = ((a.square().sum(1) / a.shape[1] + 1) ** 3).sum()
    return (kernel_sum(a, a) - diagonal) / (len(a) * (len(a) - 1))


def kernel_distance(x: Tensor, y: Tensor) -> float:
    """KID times 1000 between features [N, F] and [M, F]; N and M are at least 2."""
    x, y = x.double(), y.double()
    return 1000 * float(mean_of_pairs(x) + mean_of_pairs(y) - 2 * kernel_sum(x, y) / (len(x) * len(y)))


class FrechetInceptionDistance(Comparison):
    """Frechet inception distance (Heusel et al. 2017) between Gaussians fitted to two sets of features.

    FID is |m1 - m2|^2 + tr(S1 + S2 - 2 (S1 S2)^(1/2)) with means m and covariances S = R^T R.  The trace of the
    square root is the sum of the singular values of R1 R2^T, because the squares of these singular values are the
    eigenvalues of S1 S2.  This sum is numerically stable even if covariances are singular.

    Published FIDs use extractor=inception and 50,000 fakes; fewer images bias FID upwards.  Unlike the official code of
    progressive GANs, this class takes each real once, and never flips reals.
    """

    paper_images = 50_000
    least_images = 16  # FID's paper gives no minimum number of images, so KID's minimum is used.
    takes_more_fakes = True
    decides = "fid"

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, tuple[float, int]]:
        return {"fid": (frechet_distance(fakes, reals), self.count)}


def gaussian_of(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean [F] of features [N, F], and a matrix R for which R^T R is the covariance of the features."""
    features = features.double()
    mean = features.mean(0)
    return mean, torch.linalg.qr(features - mean, mode="r").R / (len(features) - 1) ** 0.5


def frechet_distance(x: Tensor, y: Tensor) -> float:
    """FID between features [N, F] and [M, F]; N and M are at least 2."""
    (mean_x, factor_x), (mean_y, factor_y) = gaussian_of(x), gaussian_of(y)
    root = torch.linalg.svdvals(factor_x @ factor_y.T).sum()
    return float((mean_x - mean_y).square().sum() + factor_x.square().sum() + factor_y.square().sum() - 2 * root)


def nearest_images(others: Tensor, *orientations: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Find each image's `count` nearest rows in `others` [M, F]; returns distances, indices [N, count] on the CPU."""
    found = [block.topk(count, largest=False) for _, block in distance_blocks(others, *orientations)]
    return torch.cat([one.values for one in found]).cpu(), torch.cat([one.indices for one in found]).cpu()


class NearestNeighbours(Metric):
    """Finds fakes that copy training images.

    A fake is a copy if its distance to the nearest training image is below the 5th percentile of the distances from
    `count` training images to their nearest other training image.  So about 5 % of a good generator's fakes count as
    copies; a generator that repeats training images makes more.  An image and its mirror image count as the same.
    """

    paper_images = 1000  # With 1000 fakes, a measured share of 5 % copies has a standard error of 0.7 %.
    uses_extractor = True
    least_images = round(1 / QUANTILE)  # With fewer than 20 distances, the 5 % quantile would be nearly the minimum.

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        looks = (task.extractor.features, task.extractor.features_of_mirrored)
        self.fakes = [task.of_fakes(look, count) for look in looks]

    def values(self) -> dict[str, float]:
        task, extractor = self.task, self.task.extractor
        every = task.of_reals(extractor.features, task.reals.pyramid.images)
        mirrored = task.of_reals(extractor.features_of_mirrored, self.count)
        fakes = [one.rows()[: self.count] for one in self.fakes]
        if not task.partition.group.is_main:
            return {}
        reals, mirrored, *fakes = task.precise(every, mirrored, *fakes)
        self.distances, self.nearest = nearest_images(reals, *fakes, count=SHOWN)
        distances = self.distances[:, 0]
        # The nearest image of a real is the real itself, so the second nearest counts.
        among = nearest_images(reals, reals[: self.count], mirrored, count=2)[0][:, 1]
        # If many reals are duplicates, the quantile is 0.  Then only fakes that equal a real up to rounding are copies.
        rounding = SAME_IMAGE * float(torch.linalg.vector_norm(every, dim=1).mean())
        are_copies = (distances < among.quantile(QUANTILE)) | (distances <= rounding)
        values = {
            "neighbour_distance": distances.median(),
            "neighbour_distance_reals": among.median(),
            "copies": are_copies.double().mean(),
        }
        return {label(key, extractor.name, self.count): float(value) for key, value in values.items()}

    def pictures(self) -> dict[str, Pixels]:
        task, images = self.task, list[Pixels]()
        for fake in self.distances[:, 0].argsort()[:ROWS].tolist():
            images += [*task.fakes.read([fake]), *task.reals.read(self.nearest[fake].tolist())]
        return {"neighbours": contact_sheet(np.stack(images), 1 + SHOWN, task.reals.pyramid.resolution)}
