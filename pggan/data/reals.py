"""Real images for a training step: chosen, mirrored, brought to [-1, 1] and faded."""

import time
from collections.abc import Callable
from functools import lru_cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.core.rng import StepRng, counter_seed
from pggan.core.schedule import Phase
from pggan.data.loader import Loader, Request
from pggan.data.pyramid import ImagePyramid
from pggan.losses.base import Reals
from pggan.ops.elementwise import downsample, fade, upsample

Indices = NDArray[np.int64]


@lru_cache(maxsize=2)  # a batch can reach into the next epoch
def epoch_order(seed: int, epoch: int, count: int) -> Indices:
    """The order of `count` images in `epoch`: a permutation that depends on (seed, epoch) alone."""
    return np.random.default_rng(counter_seed(seed, "order", epoch)).permutation(count)


def indices_at(seed: int, images: int, batch: int, count: int) -> Indices:
    """Which of `count` images are shown as numbers `images` … `images + batch - 1`; each once per epoch.  int64 [N]."""
    first, last = images // count, (images + batch - 1) // count
    orders = [epoch_order(seed, epoch, count) for epoch in range(first, last + 1)]
    start = images - first * count
    return (orders[0] if len(orders) == 1 else np.concatenate(orders))[start : start + batch]


def to_float(images: Tensor) -> Tensor:
    """uint8 [N, R, R, C] to float32 [N, C, R, R] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def mirrored(images: Tensor, flip: Tensor) -> Tensor:
    """uint8 [N, R, R, C], those flipped left to right where `flip` [N] is true."""
    flipped = images.permute(0, 3, 1, 2).flip(-1).permute(0, 2, 3, 1)  # in this layout PyTorch is four times as fast
    # Chosen as bytes, eight at a time: a quarter of the work it would be as floats.
    chosen = torch.where(flip[:, None], flipped.flatten(1).view(torch.int64), images.flatten(1).view(torch.int64))
    return chosen.view(torch.uint8).view(images.shape)


def whole_batch(batch: int) -> slice:
    """All positions of a batch."""
    return slice(0, batch)


class RealBatches:
    """Batches of a pyramid, each a function of (seed, images shown)."""

    def __init__(
        self,
        pyramid: ImagePyramid,
        seed: int,
        device: torch.device,
        mirror: bool,
        labels: bool,
        *,
        budget: int = 0,
        phase_at: Callable[[int], Phase] | None = None,
        indices: Callable[[int], slice | Indices] = whole_batch,
    ) -> None:
        """Args: mirror: flip each image left to right with probability 1/2; labels: give one-hot class labels.

        budget: bytes of levels that may live on the device; the others are read when needed.
        phase_at: the phase at an image count; with it, the next batch is read ahead.
        indices: from the size of a batch to the positions in it that this stream gives, where several ranks share one
        batch.  An image depends on its position in the whole batch alone.
        """
        self.pyramid = pyramid
        self.seed = seed
        self.device = device
        self.mirror = mirror
        self.num_classes = len(pyramid.class_names or ())
        self.labels = torch.from_numpy(pyramid.labels).to(device) if labels and pyramid.labels is not None else None
        self._loader = Loader(pyramid, device, budget)
        self.phase_at = phase_at
        self._indices = indices
        self._on_device: dict[int, slice | Tensor] = {}
        self.seconds = 0.0  # spent in `batch` so far

    def batch(self, phase: Phase, rng: StepRng) -> Reals:
        """The images shown next at the resolution and alpha of `phase`, at this stream's positions of the batch."""
        began = time.perf_counter()
        reals = self._make(phase, rng)
        self.seconds += time.perf_counter() - began
        return reals

    def _make(self, phase: Phase, rng: StepRng) -> Reals:
        request, positions = self._request(phase, rng.images), self._positions(phase.batch)
        stored = self._loader.get(request)  # [N, R, R, C]
        if self.phase_at is not None and not self._loader.fits(phase.resolution):
            later = rng.images + phase.batch
            self._loader.prefetch(self._request(self.phase_at(later), later))
        flip = rng.uniform("mirror", phase.batch, 1, 1, 1)[positions].flatten() < 0.5 if self.mirror else None
        images = to_float(stored if flip is None else mirrored(stored, flip))
        if phase.alpha < 1:
            images = fade(upsample(downsample(images)), images, phase.alpha)
        if self.labels is None:
            return Reals(images, None, None)
        others = rng.integers("fake_labels", len(self.labels), phase.batch)[positions]
        shown = torch.from_numpy(request.indices).to(self.device, non_blocking=True)
        return Reals(images, self._one_hot(shown), self._one_hot(others))

    def _request(self, phase: Phase, images: int) -> Request:
        indices = indices_at(self.seed, images, phase.batch, self.pyramid.images)
        return Request(phase.resolution, indices[self._indices(phase.batch)])

    def _positions(self, batch: int) -> slice | Tensor:
        """The positions that this stream gives, copied to the device once because each copy waits for it."""
        if batch not in self._on_device:
            indices = self._indices(batch)
            self._on_device[batch] = (
                indices if isinstance(indices, slice) else torch.from_numpy(indices).to(self.device)
            )
        return self._on_device[batch]

    def _one_hot(self, indices: Tensor) -> Tensor:
        assert self.labels is not None, "called with labels only"
        return torch.nn.functional.one_hot(self.labels[indices], self.num_classes).float()
