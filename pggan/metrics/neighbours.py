"""Nearest training images of the fakes: does the generator draw copies?

The distance from each fake to the nearest of all training images is compared with the distance from each of as many
training images to the nearest different one, in the extractor's features and in pixels.  A fake counts as a copy when
it is closer than 95 % of the training images are to each other: about 5 % of fakes do if the generator draws as the
data does; far more, and it repeats what it has seen.  The picture shows fakes beside their nearest training images.

A training image at a distance of rounding is the same image, stored twice, and no different one: data with many such
pairs would have no distance among training images that a copy could be below.  A note tells how many there are.

Where training mirrors images at random (data.mirror=true), both orientations of an image count as the same one: its
distance to a training image is the lesser of that of the image as it is and that of the image mirrored.  Images that
are compared are mirrored, rather than all training images, which are more; by pixels it is the same.  This holds for
fakes and for training images alike, and an image's own mirror is no different training image, stored or not.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pggan.metrics.base import Metric, Task, label
from pggan.metrics.collect import Collector
from pggan.metrics.distances import SAME_IMAGE, nearest_different, oriented_blocks, rounding_of
from pggan.metrics.extractor import Extractor
from pggan.sampling.images import Pixels, enlarge

QUANTILE = 0.05  # of the distances between training images, below which a fake is a copy
CLOSEST = 6  # rows of the picture: the fakes that are closest to a training image …
SPREAD = (0.25, 0.5, 0.75, 1.0)  # … and those at these quantiles of the distance
SHOWN = 4  # training images beside each fake, per kind of features
TILE = 64  # pixels to which small images are enlarged
GAP = 4  # pixels between the groups


@dataclass(frozen=True)
class Neighbours:
    """The nearest training images of some images, the nearest first: [N, K] each."""

    distances: Tensor  # float64
    numbers: Tensor  # int64, of the training images
    are_mirrored: Tensor  # whether they are nearer in the other orientation


def nearest_images(others: Tensor, *orientations: Tensor, count: int) -> Neighbours:
    """The `count` nearest of the images with features `others` [M, F], on the host.

    Args: orientations: as of `oriented_blocks`.
    """
    found = []
    for _, block, are_mirrored in oriented_blocks(orientations, others):
        distances, numbers = block.topk(count, largest=False)
        found.append((distances.cpu(), numbers.cpu(), are_mirrored.gather(1, numbers).cpu()))
    return Neighbours(*map(torch.cat, zip(*found, strict=True)))


class NearestNeighbours(Metric):
    """`neighbour_distance` (median), the same of reals, and `copies`, each by features and by pixels."""

    key = "neighbours"
    paper_images = 1000  # no paper's: enough for a share of 5 % to be known to one percentage point
    least_images = round(1 / QUANTILE)  # of fewer distances, the quantile is all but the smallest one

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.training = task.reals.pyramid.images
        self.extractors = {one.name: one for one in (self.extractor, task.pixels)}
        self.fakes = {
            name: [task.want_features(one, fakes=count, reals=self.training)] for name, one in self.extractors.items()
        }
        if task.mirror:
            for name, one in self.extractors.items():
                self.fakes[name].append(task.want_features(one, fakes=count, reals=count, mirrored=True))
        self.found: dict[str, Neighbours] = {}  # of the fakes, SHOWN each, on rank 0
        self.repeated: dict[str, int] = {}  # of the training images that are compared, those that the data repeats

    def collectors(self) -> list[Collector]:
        return [one for orientations in self.fakes.values() for one in orientations]

    def parameters(self) -> dict[str, Any]:
        both = bool(self.task.mirror)
        found = {"training_images": self.training, "copies_below_quantile": QUANTILE, "same_image_within": SAME_IMAGE}
        return {**found, "both_orientations": both}

    def notes(self) -> list[str]:
        found = []
        if self.task.mirror is None:
            found.append("neighbours are those of unmirrored images: nothing tells whether training mirrored them.")
        if repeated := self.repeated.get(self.task.pixels.name, 0):
            again = "stored again, as they are or mirrored" if self.task.mirror else "stored again"
            images = f"{repeated:,} of {self.count:,} training images"
            found.append(f"neighbours finds {images} {again}: the nearest different image counts.")
        return found

    def values(self) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, extractor in self.extractors.items():
            numbers |= self._by(name, extractor)
        return numbers

    def _by(self, name: str, extractor: Extractor) -> dict[str, float]:
        task = self.task
        fakes = [one.rows(self.count) for one in self.fakes[name]]
        reals = task.real_features(extractor, self.training)
        mirrored = task.real_features(extractor, self.count, mirrored=True) if task.mirror else None
        if reals is None:
            return {}
        some = [reals[: self.count]] if mirrored is None else [reals[: self.count], mirrored]
        self.found[name] = task.precisely(partial(nearest_images, count=min(SHOWN, self.training)), reals, *fakes)
        distances = self.found[name].distances[:, 0]
        among, self.repeated[name] = task.precisely(nearest_different, reals, *some)
        are_copies = (distances < among.quantile(QUANTILE)) | (distances <= rounding_of(reals))
        values = {
            "neighbour_distance": distances.median(),
            "neighbour_distance_reals": among.median(),
            "copies": are_copies.double().mean(),
        }
        return {label(key, name, self.count): float(value) for key, value in values.items()}

    def picture(self) -> Pixels:
        """Rows of a fake and its nearest training images by features, then by pixels; the closest fakes first.

        Training images are in the orientation in which they are nearest.
        """
        order = self.found[self.extractor.name].distances[:, 0].argsort()
        places = [*range(min(CLOSEST, self.count)), *(round(share * (self.count - 1)) for share in SPREAD)]
        rows = []
        for fake in order[sorted(set(places))].tolist():
            groups = [self.task.fakes.read([fake])]
            for found in self.found.values():
                reals, are_mirrored = self.task.reals.read(found.numbers[fake].tolist()), found.are_mirrored[fake]
                groups.append(np.where(are_mirrored.numpy()[:, None, None, None], reals[:, :, ::-1], reals))
            rows.append(_in_a_row([enlarge(group, max(TILE // self.task.resolution, 1)) for group in groups]))
        return np.concatenate(rows)


def _in_a_row(groups: list[Pixels]) -> Pixels:
    """Images [N, S, S, C] of each group side by side, with white between the groups.  -> [S, width, C]"""
    side, channels = groups[0].shape[1], groups[0].shape[3]
    gap = np.full((side, GAP, channels), 255, np.uint8)
    parts = [part for group in groups for part in (gap, *group)]
    return np.concatenate(parts[1:], axis=1)
