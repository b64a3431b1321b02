"""Nearest training images of the fakes: does the generator draw copies?

The distance from each fake to the nearest of all training images is compared with the distance from each of as many
training images to the nearest different one, in the extractor's features and in pixels.  A fake counts as a copy when
it is closer than 95 % of the training images are to each other: about 5 % of fakes do if the generator draws as the
data does; far more, and it repeats what it has seen.  The picture shows fakes beside their nearest training images.

A training image at a distance of rounding is the same image, stored twice, and no different one: data with many such
pairs would have no distance among training images that a copy could be below.

Where training mirrors images at random (data.mirror=true), both orientations of an image count as the same one: its
distance to a training image is the lesser one of the image as it is and of the image mirrored.  Images that
are compared are mirrored, rather than all training images, which are more; by pixels it is the same.  This holds for
fakes and for training images alike, and an image's own mirror is no different training image, stored or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from pggan.metrics.base import Metric, Task, label
from pggan.metrics.extractors import Extractor, pixel_extractor
from pggan.metrics.features import distance_blocks
from pggan.sampling.images import Pixels, enlarge

QUANTILE = 0.05  # of the distances between training images, below which a fake is a copy
# Of features of the same image, by their mean length: in float32, each of up to 2^6 layers rounds sums of up to 2^12
# products to 2^-24 each, by chance up or down, which is 2^(3 + 6 - 24) in all; and as much again.
SAME_IMAGE = 2.0**-14
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


def rounding_of(features: Tensor) -> float:
    """The distance up to which two of `features` [N, F] belong to the same image."""
    return SAME_IMAGE * float(torch.linalg.vector_norm(features, dim=1).mean())


def oriented_blocks(others: Tensor, *orientations: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Distances of images to all of `others` [M, F], a block of images at a time, with its start.

    The last tensor says whether the mirrored image is nearer.
    Args: orientations: features [N, F] of the images as they are, and mirrored where that is the same image.
    """
    for (start, closest), *mirrored in zip(*(distance_blocks(one, others) for one in orientations), strict=True):
        are_mirrored = torch.zeros_like(closest, dtype=torch.bool)
        for _, block in mirrored:
            torch.lt(block, closest, out=are_mirrored)
            torch.minimum(closest, block, out=closest)
        yield start, closest, are_mirrored


def nearest_images(others: Tensor, *orientations: Tensor, count: int) -> Neighbours:
    """The `count` nearest of the images with features `others` [M, F], on the host."""
    found = []
    for _, block, are_mirrored in oriented_blocks(others, *orientations):
        distances, numbers = block.topk(count, largest=False)
        found.append((distances.cpu(), numbers.cpu(), are_mirrored.gather(1, numbers).cpu()))
    return Neighbours(*map(torch.cat, zip(*found, strict=True)))


def nearest_different(others: Tensor, *orientations: Tensor) -> Tensor:
    """Distances float64 [N], on the host, of the first N of `others` [M, F] to the nearest different one.

    The distance is 0 where all others are the same image.
    """
    found, rounding = [], rounding_of(others)
    for start, block, _ in oriented_blocks(others, *orientations):
        block.diagonal(start).fill_(torch.inf)
        found.append(block.masked_fill_(block <= rounding, torch.inf).amin(1))
    distances = torch.cat(found).cpu()
    return distances.masked_fill_(distances.isinf(), 0)


class NearestNeighbours(Metric):
    """`neighbour_distance` (median), the same of reals, and `copies`, each by features and by pixels."""

    key = "neighbours"
    paper_images = 1000  # no paper's: enough for a share of 5 % to be known to one percentage point
    least_images = round(1 / QUANTILE)  # of fewer distances, the quantile is all but the smallest one

    def __init__(self, task: Task, count: int) -> None:
        super().__init__(task, count)
        self.training = task.reals.pyramid.images
        self.extractors = {one.name: one for one in (self.extractor, pixel_extractor())}
        self.fakes = {
            name: [task.want_features(one, fakes=count, reals=self.training)] for name, one in self.extractors.items()
        }
        if task.mirror:
            for name, one in self.extractors.items():
                self.fakes[name].append(task.want_features(one, fakes=count, reals=count, mirrored=True))
        self.found: dict[str, Neighbours] = {}  # of the fakes, SHOWN each, on rank 0

    def values(self) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for extractor in self.extractors.values():
            numbers |= self._by(extractor)
        return numbers

    def _by(self, extractor: Extractor) -> dict[str, float]:
        task, name = self.task, extractor.name
        fakes = [one.rows()[: self.count] for one in self.fakes[name]]
        reals = task.real_features(extractor, self.training)
        some = [reals[: self.count]]
        if task.mirror:
            some.append(task.real_features(extractor, self.count, mirrored=True))
        if not task.is_main:
            return {}
        self.found[name] = task.precisely(partial(nearest_images, count=min(SHOWN, self.training)), reals, *fakes)
        distances = self.found[name].distances[:, 0]
        among = task.precisely(nearest_different, reals, *some)
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
            tiles = [enlarge(group, max(TILE // self.task.resolution, 1)) for group in groups]
            gap = np.full((tiles[0].shape[1], GAP, tiles[0].shape[3]), 255, np.uint8)
            parts = [part for group in tiles for part in (gap, *group)]
            rows.append(np.concatenate(parts[1:], axis=1))
        return np.concatenate(rows)
