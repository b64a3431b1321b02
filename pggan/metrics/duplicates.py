"""Duplicates among fakes: the share of pairs that are closer together than images of the data are.

Two images count as the same below a stated distance in feature space: that below which 5 % of as many reals have their
nearest other real.  The share among the reals, which cannot be 0 for that reason, is given beside it.
"""

from typing import Any

from torch import Tensor

from pggan.metrics.base import Metric, Task
from pggan.metrics.collect import Collector
from pggan.metrics.distances import distance_blocks, nearest

QUANTILE = 0.05


def share_of_close_pairs(features: Tensor, below: float) -> float:
    """The share of pairs of different rows of `features` [N, F] with a distance of at most `below`."""
    close = 0
    for start, block in distance_blocks(features, features):
        block.diagonal(start).fill_(float("inf"))
        close += int((block <= below).sum())
    return close / (len(features) * (len(features) - 1))


class Duplicates(Metric):
    """`duplicates` of the fakes, `duplicates_reals`, and the `duplicate_distance` that both are counted below."""

    key = "duplicates"
    paper_images = 10_000  # no paper's: 50 million pairs
    least_images = 2

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.fakes = task.want_features(self.extractor, fakes=count, reals=count)

    def collectors(self) -> list[Collector]:
        return [self.fakes]

    def parameters(self) -> dict[str, Any]:
        return {"below_quantile": QUANTILE}

    def values(self) -> dict[str, float]:
        fakes, reals = self.fakes.rows(self.count), self.task.real_features(self.extractor, self.count)
        if reals is None:
            return {}
        fakes, reals = fakes.to(self.task.precise_device), reals.to(self.task.precise_device)
        below = float(nearest(reals, reals, same=True)[0].quantile(QUANTILE))
        values = {
            "duplicates": share_of_close_pairs(fakes, below),
            "duplicates_reals": share_of_close_pairs(reals, below),
            "duplicate_distance": below,
        }
        return {name: number for key, value in values.items() for name, number in self.named(key, value).items()}
