"""Duplicates among fakes: the share of pairs that are closer together than images of the data are.

Two images count as the same below a stated distance in feature space: that below which 5 % of as many reals have their
nearest other real.  The share among the reals, which cannot be 0 for that reason, is given beside it.
"""

from typing import Any

from torch import Tensor

from pggan.metrics.base import FeatureMetric
from pggan.metrics.distances import distance_blocks, nearest

QUANTILE = 0.05


def share_of_close_pairs(features: Tensor, below: float) -> float:
    """The share of pairs of different rows of `features` [N, F] with a distance of at most `below`."""
    close = 0
    for start, block in distance_blocks(features, features):
        block.diagonal(start).fill_(float("inf"))
        close += int((block <= below).sum())
    return close / (len(features) * (len(features) - 1))


class Duplicates(FeatureMetric):
    """`duplicates` of the fakes, `duplicates_reals`, and the `duplicate_distance` that both are counted below."""

    key = "duplicates"
    paper_images = 10_000  # no paper's: 50 million pairs
    least_images = round(1 / QUANTILE)  # of fewer distances, the quantile is all but the smallest one

    def parameters(self) -> dict[str, Any]:
        return {"below_quantile": QUANTILE}

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        below = float(nearest(reals, reals, same=True)[0].quantile(QUANTILE))
        values = {
            "duplicates": share_of_close_pairs(fakes, below),
            "duplicates_reals": share_of_close_pairs(reals, below),
            "duplicate_distance": below,
        }
        return {name: number for key, value in values.items() for name, number in self.named(key, value).items()}
