"""Improved precision and recall (Kynkaanniemi et al. 2019), k = 3.

Around every image of a set lies a ball in feature space that reaches to its third nearest neighbour in the same set.
Precision is the share of fakes in a ball of the reals: quality.  Recall is the share of reals in a ball of the fakes:
variety.  Both are in [0, 1], and higher is better.  The paper takes 50,000 images and the features of VGG-16.
"""

from typing import Any

import torch
from torch import Tensor

from pggan.metrics.base import FeatureMetric
from pggan.metrics.distances import distance_blocks, nearest

NEIGHBOURS = 3


def covered(points: Tensor, centres: Tensor) -> float:
    """The share of `points` [N, F] that lie in a ball around one of `centres` [M, F]."""
    radii = nearest(centres, centres, NEIGHBOURS, same=True)[0][:, -1]
    inside = [(block <= radii).any(1) for _, block in distance_blocks(points, centres)]
    return float(torch.cat(inside).double().mean())


class PrecisionRecall(FeatureMetric):
    """`precision` and `recall`."""

    key = "precision_recall"
    paper_images = 50_000
    least_images = 20  # the third nearest of few is among the farthest: with 4 images, all is covered or nothing

    def parameters(self) -> dict[str, Any]:
        return {"neighbours": NEIGHBOURS}

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        return self.named("precision", covered(fakes, reals)) | self.named("recall", covered(reals, fakes))
