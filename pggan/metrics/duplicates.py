"""Duplicates among fakes: the share of pairs that are closer together than images of the data are.

Two images count as the same below a stated distance in feature space: that below which 5 % of as many reals have their
nearest different real.  A real at a distance of rounding is the same image, stored twice, and no different one: data
with many such pairs would have a stated distance of 0, below which no fakes are.  The share among the reals, which
cannot be 0 for that reason, is given beside it; there, the same image stored twice does count.
"""

from typing import Any

from torch import Tensor

from pggan.metrics.base import FeatureMetric
from pggan.metrics.distances import SAME_IMAGE, distance_blocks, nearest_different, rounding_of

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
        return {"below_quantile": QUANTILE, "same_image_within": SAME_IMAGE}

    def compare(self, fakes: Tensor, reals: Tensor) -> dict[str, float]:
        among, _ = nearest_different(reals, reals)
        below = max(float(among.quantile(QUANTILE)), rounding_of(reals))
        values = {
            "duplicates": share_of_close_pairs(fakes, below),
            "duplicates_reals": share_of_close_pairs(reals, below),
            "duplicate_distance": below,
        }
        return {name: number for key, value in values.items() for name, number in self.named(key, value).items()}
