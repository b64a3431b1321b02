"""Batches of real images for training, in [-1, 1], mirrored at random, and faded in at each new resolution."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from pggan.core.rng import StepRng, counter_seed
from pggan.core.schedule import Phase
from pggan.data.pyramid import ImagePyramid
from pggan.losses.base import Reals
from pggan.ops.elementwise import downsample, fade, upsample

Indices = NDArray[np.int64]


@lru_cache(maxsize=2)  # keeps the orders of two epochs, because a batch may contain images of two epochs
def epoch_order(seed: int, epoch: int, count: int) -> Indices:
    """Return the order of `count` images in `epoch`; the order depends only on `seed` and `epoch`."""
    return np.random.default_rng(counter_seed(seed, "order", epoch)).permutation(count)


def indices_at(seed: int, images: int, batch: int, count: int) -> Indices:
    """Return the image indices of the next batch, int64 [batch], after `images` images have been shown."""
    first, last = images // count, (images + batch - 1) // count
    orders = [epoch_order(seed, epoch, count) for epoch in range(first, last + 1)]
    start = images - first * count
    return (orders[0] if len(orders) == 1 else np.concatenate(orders))[start : start + batch]


def to_float(images: Tensor) -> Tensor:
    """Convert uint8 images [N, R, R, C] to float32 [N, C, R, R] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


@dataclass(eq=False)
class RealBatches:
    """Batches of real images; they depend on the seed and the number of images shown, not on the number of ranks."""

    pyramid: ImagePyramid
    seed: int
    device: torch.device
    mirror: bool  # flip each image left to right with probability 1/2
    labels: bool
    indices: Callable[[int], Indices] = np.arange  # maps the global batch size to this rank's positions in the batch

    def __post_init__(self) -> None:
        labels = self.pyramid.labels if self.labels else None
        self._labels = None if labels is None else torch.from_numpy(labels).to(self.device)
        self._on_device: dict[int, Tensor] = {}

    def batch(self, phase: Phase, rng: StepRng) -> Reals:
        """Return this rank's part of the next batch, with one-hot labels if the training uses labels."""
        mine = self.indices(phase.batch)
        if phase.batch not in self._on_device:  # cached: a copy in each step would make the CPU wait for the GPU
            self._on_device[phase.batch] = torch.from_numpy(mine).to(self.device)
        positions = self._on_device[phase.batch]
        shown = indices_at(self.seed, rng.images, phase.batch, self.pyramid.images)[mine]
        stored = torch.from_numpy(self.pyramid.read(phase.resolution, shown))  # [N, R, R, C]
        # The copy from pinned memory is asynchronous, so the next batch is read while the GPU still computes.
        stored = stored.pin_memory() if self.device.type == "cuda" else stored
        stored = stored.to(self.device, non_blocking=True)
        if self.mirror:
            flip = rng.uniform("mirror", phase.batch, 1, 1, 1)[positions] < 0.5
            stored = torch.where(flip, stored.flip(2), stored)
        images = to_float(stored)
        if phase.alpha < 1:
            images = fade(upsample(downsample(images)), images, phase.alpha)
        if (labels := self._labels) is None:
            return Reals(images, None, None)
        others = rng.integers("fake_labels", len(labels), phase.batch)[positions]
        numbers = torch.from_numpy(shown).to(self.device, non_blocking=True), others
        count = len(self.pyramid.class_names or ())
        return Reals(images, *(one_hot(labels[chosen], count).float() for chosen in numbers))
