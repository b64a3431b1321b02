"""Nearest training images of the fakes: does the generator draw copies?

The distance from each fake to the nearest of all training images is compared with the distance from each of as many
training images to the nearest other one, in the extractor's features and in pixels.  A fake counts as a copy when it is
closer than 95 % of the training images are to each other: about 5 % of fakes do if the generator draws as the data
does; far more, and it repeats what it has seen.  The picture shows fakes beside their nearest training images.
"""

from typing import Any

import numpy as np
from torch import Tensor

from pggan.metrics.base import Metric, Task, label
from pggan.metrics.collect import Collector
from pggan.metrics.distances import nearest
from pggan.metrics.extractor import Extractor
from pggan.sampling.output.images import Pixels, enlarge

QUANTILE = 0.05  # of the distances between training images, below which a fake is a copy
CLOSEST = 6  # rows of the picture: the fakes that are closest to a training image …
SPREAD = (0.25, 0.5, 0.75, 1.0)  # … and those at these quantiles of the distance
SHOWN = 4  # training images beside each fake, per kind of features
TILE = 64  # pixels to which small images are enlarged
GAP = 4  # pixels between the groups


class NearestNeighbours(Metric):
    """`neighbour_distance` (median), the same of reals, and `copies`, each by features and by pixels."""

    key = "neighbours"
    paper_images = 1000  # no paper's: enough for a share of 5 % to be known to one percentage point
    least_images = 2

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.training = task.reals.pyramid.images
        self.extractors = {one.name: one for one in (self.extractor, task.pixels)}
        self.fakes = {
            name: task.want_features(one, fakes=count, reals=self.training) for name, one in self.extractors.items()
        }
        self.found: dict[str, tuple[Tensor, Tensor]] = {}  # distances and real numbers [count, SHOWN], on rank 0

    def collectors(self) -> list[Collector]:
        return list(self.fakes.values())

    def parameters(self) -> dict[str, Any]:
        return {"training_images": self.training, "copies_below_quantile": QUANTILE}

    def values(self) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, extractor in self.extractors.items():
            numbers |= self._by(name, extractor)
        return numbers

    def _by(self, name: str, extractor: Extractor) -> dict[str, float]:
        fakes, reals = self.fakes[name].rows(self.count), self.task.real_features(extractor, self.training)
        if reals is None:
            return {}
        fakes, reals = fakes.to(self.task.precise_device), reals.to(self.task.precise_device)
        shown = min(SHOWN, self.training)
        self.found[name] = tuple(part.cpu() for part in nearest(fakes, reals, shown))  # type: ignore[assignment]
        distances = self.found[name][0][:, 0]
        among = nearest(reals[: self.count], reals, same=True)[0][:, 0].cpu()
        values = {
            "neighbour_distance": distances.median(),
            "neighbour_distance_reals": among.median(),
            "copies": (distances < among.quantile(QUANTILE)).double().mean(),
        }
        return {label(key, name, self.count): float(value) for key, value in values.items()}

    def picture(self) -> Pixels:
        """Rows of a fake and its nearest training images by features, then by pixels; the closest fakes first."""
        order = self.found[self.extractor.name][0][:, 0].argsort()
        places = [*range(min(CLOSEST, self.count)), *(round(share * (self.count - 1)) for share in SPREAD)]
        rows = []
        for fake in order[sorted(set(places))].tolist():
            groups = [self.task.fakes.read([fake])]
            groups += [self.task.reals.read(found[1][fake].tolist()) for found in self.found.values()]
            rows.append(_in_a_row([enlarge(group, max(TILE // self.task.resolution, 1)) for group in groups]))
        return np.concatenate(rows)


def _in_a_row(groups: list[Pixels]) -> Pixels:
    """Images [N, S, S, C] of each group side by side, with white between the groups.  -> [S, width, C]"""
    side, channels = groups[0].shape[1], groups[0].shape[3]
    gap = np.full((side, GAP, channels), 255, np.uint8)
    parts = [part for group in groups for part in (gap, *group)]
    return np.concatenate(parts[1:], axis=1)
