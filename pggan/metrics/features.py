"""Metrics of features: FID, KID, precision and recall, and nearest training images.

Features and distances are compared in float64.  Distances are calculated from products, ten times as fast as from
differences: between equal rows of length L, up to about 1e-7 L comes out instead of 0, because the root doubles the
share of digits that float64 rounds away.
"""

from abc import abstractmethod
from collections.abc import Iterator
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from pggan.metrics import Metric, Task, label
from pggan.sampling.images import Pixels, contact_sheet

DISTANCE_ROWS = 1024  # whose distances to all others are held at once
KERNEL_ROWS = 2048  # likewise of the kernel
NEIGHBOURS = 3

# Of nearest training images:
QUANTILE = 0.05  # of the distances between training images, below which a fake is a copy
# Of features of the same image, by their mean length: in float32, each of up to 2^6 layers rounds sums of up to 2^12
# products to 2^-24 each, by chance up or down, which is 2^(3 + 6 - 24) in all; and as much again.
SAME_IMAGE = 2.0**-14
ROWS = 8  # of the picture: the fakes that are closest to a training image
SHOWN = 4  # training images beside each fake


def distance_blocks(others: Tensor, *orientations: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Euclidean distances of images to all of `others` [M, F], a block of images at a time, with its first number.

    Args: orientations: features [N, F] of the images as they are, and mirrored where that is the same image.
    """
    for start in range(0, len(orientations[0]), DISTANCE_ROWS):
        rows = [one[start : start + DISTANCE_ROWS].double() for one in orientations]
        blocks = (torch.cdist(one, others.double(), compute_mode="use_mm_for_euclid_dist") for one in rows)
        yield start, reduce(torch.minimum, blocks)


class Comparison(Metric):
    """A metric that compares features of fakes with features of as many reals, or of all if there are fewer."""

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
        """The numbers with their counts, of features [N, F] of fakes and of reals, where float64 can be calculated."""


class PrecisionRecall(Comparison):
    """Improved precision and recall (Kynkaanniemi et al. 2019), k = 3: `precision` and `recall`.

    Around every image of a set lies a ball in feature space that reaches to its third nearest neighbour in the same
    set.  Precision is the share of fakes in a ball of the reals: quality.  Recall is the share of reals in a ball of
    the fakes: variety.  Both are in [0, 1], and higher is better.  The paper takes 50,000 images and VGG-16's features.
    """

    paper_images = 50_000
    least_images = 20  # the third nearest of few is among the farthest: with 4 images, all is covered or nothing

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, tuple[float, int]]:
        return {"precision": (covered(fakes, reals), self.count), "recall": (covered(reals, fakes), self.count)}


def covered(points: Tensor, centres: Tensor) -> float:
    """The share of `points` [N, F] that lie in a ball around one of `centres` [M, F]."""
    radii = []
    for start, block in distance_blocks(centres, centres):
        block.diagonal(start).fill_(torch.inf)
        radii.append(block.topk(NEIGHBOURS, largest=False).values[:, -1])
    inside = [(block <= torch.cat(radii)).any(1) for _, block in distance_blocks(centres, points)]
    return float(torch.cat(inside).double().mean())


class KernelInceptionDistance(Comparison):
    """Kernel inception distance (Binkowski et al. 2018, section 4), times 1000: `kid`, and `kid_floor`.

    The squared maximum mean discrepancy between features under the kernel (x . y / F + 1)^3, in its unbiased form, of
    all images of one set against all of the other, rather than the mean over random subsets of 1000: its expectation is
    the same, its variance smaller, and nothing is left to chance.  Because it is unbiased, numbers of different counts
    can be compared; a perfect generator has 0 on average, and negative numbers occur.  The floor is the number of one
    half of the reals against the other half.
    """

    paper_images = 50_000
    least_images = 16  # the floor compares 8 with 8
    decides = "kid"

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, tuple[float, int]]:
        middle = self.count // 2
        floor = kernel_distance(reals[:middle], reals[middle : 2 * middle])
        return {"kid": (kernel_distance(fakes, reals), self.count), "kid_floor": (floor, middle)}


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


class FrechetInceptionDistance(Comparison):
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

    paper_images = 50_000
    least_images = 16  # as of SWD
    takes_more_fakes = True
    decides = "fid"

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, tuple[float, int]]:
        return {"fid": (frechet_distance(fakes, reals), self.count)}


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


def rounding_of(features: Tensor) -> float:
    """The distance up to which two of `features` [N, F] belong to the same image."""
    return SAME_IMAGE * float(torch.linalg.vector_norm(features, dim=1).mean())


def nearest_images(others: Tensor, *orientations: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Distances float64 and numbers int64 [N, `count`], on the host, of the images nearest in `others` [M, F]."""
    found = [block.topk(count, largest=False) for _, block in distance_blocks(others, *orientations)]
    return torch.cat([one.values for one in found]).cpu(), torch.cat([one.indices for one in found]).cpu()


class NearestNeighbours(Metric):
    """Copies of training images: `neighbour_distance` (median), the same of reals, and `copies`.

    The distance from each fake to the nearest of all training images is compared with the distance from each of as many
    training images to the nearest other one.  A fake counts as a copy when it is closer than 95 % of the training
    images are to each other: about 5 % of fakes do if the generator draws as the data does; far more, and it repeats
    what it has seen.  The picture shows fakes beside their nearest training images.

    Both orientations of an image count as the same one: its distance to a training image is the lesser one of the image
    as it is and of the image mirrored.  Images that are compared are mirrored, rather than all training images, which
    are more.  This holds for fakes and for training images alike.
    """

    paper_images = 1000  # no paper's: enough for a share of 5 % to be known to one percentage point
    uses_extractor = True
    least_images = round(1 / QUANTILE)  # of fewer distances, the quantile is all but the smallest one

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
        among = nearest_images(reals, reals[: self.count], mirrored, count=2)[0][:, 1]  # the first is the image itself
        # Data with many images that are stored twice has no distance that a copy could be below.
        are_copies = (distances < among.quantile(QUANTILE)) | (distances <= rounding_of(every))
        values = {
            "neighbour_distance": distances.median(),
            "neighbour_distance_reals": among.median(),
            "copies": are_copies.double().mean(),
        }
        return {label(key, extractor.name, self.count): float(value) for key, value in values.items()}

    def pictures(self) -> dict[str, Pixels]:
        """Rows of a fake and its nearest training images; the closest fakes first."""
        task, images = self.task, list[Pixels]()
        for fake in self.distances[:, 0].argsort()[:ROWS].tolist():
            images += [*task.fakes.read([fake]), *task.reals.read(self.nearest[fake].tolist())]
        return {"neighbours": contact_sheet(np.stack(images), 1 + SHOWN, task.reals.pyramid.resolution)}
