"""Real images for a training step: which ones, mirrored, in range, faded."""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from pggan.data.pyramid import ImagePyramid
from pggan.draws import Draws, counter_seed
from pggan.losses.base import Reals
from pggan.networks import downsample, fade, upsample
from pggan.schedule import Phase


@lru_cache(maxsize=2)  # a batch can reach into the next epoch
def epoch_order(seed: int, epoch: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The order of `count` images in `epoch`: a permutation that depends on (seed, epoch) alone."""
    return np.random.default_rng(counter_seed(seed, "order", epoch)).permutation(count)


def indices_at(seed: int, images: int, batch: int, count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Which of `count` images are shown as numbers `images` … `images + batch - 1`; each once per epoch."""
    positions = np.arange(images, images + batch)
    return np.array([epoch_order(seed, int(p // count), count)[p % count] for p in positions], dtype=np.int64)


def to_float(images: Tensor) -> Tensor:
    """uint8 [N, R, R, C] to float32 [N, C, R, R] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1


class RealStream:
    """Batches of a pyramid, each a function of (seed, images shown)."""

    def __init__(self, pyramid: ImagePyramid, seed: int, device: torch.device, mirror: bool, labels: bool) -> None:
        """Args: mirror: flip each image left to right with probability 1/2; labels: give one-hot class labels."""
        self.pyramid = pyramid
        self.seed = seed
        self.device = device
        self.mirror = mirror
        self.classes = len(pyramid.class_names or ())
        self.labels = torch.from_numpy(pyramid.labels).to(device) if labels and pyramid.labels is not None else None

    def batch(self, phase: Phase, draws: Draws) -> Reals:
        """The images shown next, at the resolution and alpha of `phase`."""
        indices = indices_at(self.seed, draws.images, phase.batch, self.pyramid.images)
        images = to_float(torch.from_numpy(self.pyramid.read(phase.resolution, indices)).to(self.device))
        if self.mirror:
            flip = draws.uniform("mirror", phase.batch, 1, 1, 1) < 0.5
            images = torch.where(flip, images.flip(-1), images)
        if phase.alpha < 1:
            images = fade(upsample(downsample(images)), images, phase.alpha)
        if self.labels is None:
            return Reals(images, None, None)
        others = draws.integers("fake_labels", len(self.labels), phase.batch)
        return Reals(images, self._one_hot(torch.from_numpy(indices).to(self.device)), self._one_hot(others))

    def _one_hot(self, indices: Tensor) -> Tensor:
        assert self.labels is not None, "called with labels only"
        return torch.nn.functional.one_hot(self.labels[indices], self.classes).float()
