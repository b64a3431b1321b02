"""The two sides of a comparison, as numbered images that any rank can read: fakes by seed, reals in a fixed order."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.core.rng import generator_for
from pggan.data.pyramid import ImagePyramid
from pggan.networks.layers import ComputeOptions, use_options
from pggan.sampling.generate import RenderSettings, draw_in_batches
from pggan.sampling.images import Pixels
from pggan.sampling.trained_generator import TrainedGenerator

DRAWN_PIXELS = 2**22  # in a batch that a GPU draws: at 1024x1024, 4 images
LOOKED_AT = 16  # reals of a random order, to see whether there are colours


class Images(Protocol):
    """Images by index."""

    def read(self, indices: Sequence[int]) -> Pixels:
        """The images uint8 [N, R, R, C] at `indices`."""


class RealImages(Images):
    """A level of a data set in a fixed random order, without mirroring: image n is the same one in every evaluation."""

    def __init__(self, pyramid: ImagePyramid, resolution: int, first: int = 0) -> None:
        self.pyramid, self.resolution, self.first = pyramid, resolution, first
        order = torch.randperm(pyramid.images, generator=generator_for(0, "metrics order", 0))
        self.order: NDArray[np.int64] = order.numpy()

    def read(self, indices: Sequence[int]) -> Pixels:
        return self.pyramid.read(self.resolution, self.order[np.asarray(indices) + self.first])

    @property
    def are_grey(self) -> bool:
        """Whether the images have channels for colours, but the first LOOKED_AT of them show none."""
        pixels = self.pyramid.read(self.resolution, self.order[:LOOKED_AT])
        return pixels.shape[3] == 3 and bool((pixels == pixels[..., :1]).all())

    def labels(self) -> NDArray[np.int64] | None:
        """The classes of all images in this order; None without classes."""
        return None if self.pyramid.labels is None else self.pyramid.labels[self.order]


class FakeImages(Images):
    """Images of a generator: image n is that of seed `first_seed` + n, as `pggan sample` draws it.

    Of a generator with classes, image n has the class of real n (of a set without classes: n modulo their number).
    """

    def __init__(
        self, generator: TrainedGenerator, settings: RenderSettings, reals: RealImages, first_seed: int
    ) -> None:
        self.generator, self.settings, self.first_seed = generator, settings, first_seed
        labels = reals.labels()
        self.labels = np.arange(generator.num_classes) if labels is None else labels

    def read(self, indices: Sequence[int]) -> Pixels:
        network, settings = self.generator.network, self.settings
        latents = self.generator.latents([self.first_seed + index for index in indices])
        if network.weights[0].device.type == "cpu" and not self.generator.num_classes:
            return np.stack(list(self.generator.stream(latents, settings)))
        labels = self._labels(indices) if self.generator.num_classes else None
        with use_options(network, ComputeOptions()):
            return draw_in_batches(network, latents, labels, settings, max(DRAWN_PIXELS // settings.resolution**2, 1))

    def _labels(self, indices: Sequence[int]) -> Tensor:
        chosen = self.labels[np.asarray(indices) % len(self.labels)] % self.generator.num_classes
        return torch.from_numpy(chosen)


def to_device(pixels: Pixels, device: torch.device) -> Tensor:
    """Images uint8 [N, R, R, C] as uint8 [N, C, R, R] on `device`."""
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).contiguous()
