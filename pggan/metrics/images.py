"""Reads the images of an evaluation in blocks, which are divided among the ranks.

Blocks do not depend on the number of ranks.  So metrics are bitwise equal on any number of ranks, if each rank has the
same number of CPU threads.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.core.rng import generator_for
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.networks.layers import ComputeOptions, use_options
from pggan.networks.networks import Generator
from pggan.sampling.files import tracked
from pggan.sampling.generate import RenderSettings, draw, render_each, seed_latents
from pggan.sampling.images import Pixels

FIRST_SEED = 10_000
MAX_IMAGES = 64  # A rank reads blocks of at most 64 images.
BLOCK_PIXELS = 2**24  # A rank reads blocks of at most 2^24 pixels: 16 images of 1024x1024.
DRAWN_PIXELS = 2**22  # G draws batches of at most 2^22 pixels: 4 images of 1024x1024.


class RealImages:
    """The reals in a fixed random order: index n is the same image in every evaluation."""

    def __init__(self, pyramid: ImagePyramid, resolution: int, first: int = 0) -> None:
        self.pyramid, self.resolution, self.first = pyramid, resolution, first
        order = torch.randperm(pyramid.images, generator=generator_for(0, "metrics order", 0))
        self.order: NDArray[np.int64] = order.numpy()

    def read(self, indices: Sequence[int]) -> Pixels:
        """Return the images at `indices`, uint8 [N, R, R, C]."""
        return self.pyramid.read(self.resolution, self.order[np.asarray(indices) + self.first])


class FakeImages:
    """The fakes: index n is the image that `pggan sample` draws for the seed FIRST_SEED + n."""

    def __init__(self, network: Generator, settings: RenderSettings, reals: RealImages) -> None:
        self.network, self.settings = network, settings
        self.classes, labels = network.architecture.num_classes, reals.pyramid.labels
        # Fake n has the class of real n or, if the reals have no classes, the class n % num_classes.
        self.labels = np.arange(self.classes) if labels is None else labels[reals.order]

    def read(self, indices: Sequence[int]) -> Pixels:
        network, settings = self.network, self.settings
        seeds = [FIRST_SEED + index for index in indices]
        latents = seed_latents(seeds, network.architecture.latent_size)
        if network.weights[0].device.type == "cpu" and not self.classes:
            return np.stack(list(render_each(network, latents, settings)))
        labels = None
        if self.classes:
            labels = torch.from_numpy(self.labels[np.asarray(indices) % len(self.labels)] % self.classes)
        with use_options(network, ComputeOptions()):
            batch_size = max(DRAWN_PIXELS // settings.resolution**2, 1)
            return draw(network, latents, replace(settings, label=labels), batch_size)


@dataclass(frozen=True)
class RankPartition:
    """Divides images into blocks of `size` images, and assigns the blocks to the ranks round-robin."""

    group: ProcessGroup
    size: int  # The size is even, because MS-SSIM compares pairs of images.
    shows_progress: bool = False

    @classmethod
    def at(cls, resolution: int, group: ProcessGroup, *, shows_progress: bool = False) -> "RankPartition":
        """Choose the largest number of images per block that MAX_IMAGES and BLOCK_PIXELS allow."""
        return cls(group, min(MAX_IMAGES, max(BLOCK_PIXELS // resolution**2, 2)), shows_progress)

    def own(self, count: int) -> list[range]:
        """Return this rank's blocks of the images 0 to `count` - 1, as ranges of image indices."""
        blocks = [range(start, min(start + self.size, count)) for start in range(0, count, self.size)]
        return blocks[self.group.rank :: self.group.world_size]

    def all_gather(self, blocks: Sequence[Tensor]) -> Tensor:
        """Join the results of all ranks' blocks, in the order of the images."""
        turns = zip_longest(*self.group.all_gather_object(list(blocks)))
        return torch.cat([block for turn in turns for block in turn if block is not None])


class Collector(Protocol):
    """Collects results for the images 0 to `count` - 1; each rank adds the images of its own blocks."""

    count: int

    def add(self, images: Tensor) -> None:
        """Compute and store results for the next images of this rank, uint8 [N, C, R, R]."""


class RowCollector(Collector):
    """Collects the results of `calculate`, such as features [N, F] of N images."""

    def __init__(self, calculate: Callable[[Tensor], Tensor], count: int, partition: RankPartition) -> None:
        self.calculate, self.count, self.partition = calculate, count, partition
        self.blocks: list[Tensor] = []

    def add(self, images: Tensor) -> None:
        self.blocks.append(self.calculate(images).cpu())

    def rows(self) -> Tensor:
        """Gather the results for the images of all ranks: [count, …], on the CPU.  All ranks must call this method."""
        return self.partition.all_gather(self.blocks)


@torch.no_grad()
def feed(images: RealImages | FakeImages, collectors: Sequence[Collector], partition: RankPartition, what: str) -> None:
    """Read each image once, and pass the image to all `collectors` that need it; all ranks call this function."""
    own = partition.own(max((collector.count for collector in collectors), default=0))
    with partition.group.collective_errors():
        for block in tracked(own, len(own), what) if partition.shows_progress else own:
            pixels = torch.from_numpy(images.read(block)).to(partition.group.device).permute(0, 3, 1, 2).contiguous()
            for collector in collectors:
                if block.start < collector.count:
                    collector.add(pixels[: collector.count - block.start])


def separable_filter(images: Tensor, kernel: Sequence[float]) -> Tensor:
    """Filter rows and columns of images [N, C, S, S] with `kernel` [K]; without padding, sides shrink to S - K + 1."""
    for dimension in (2, 3):
        side = images.shape[dimension] - len(kernel) + 1
        found = kernel[0] * images.narrow(dimension, 0, side)
        for offset, weight in enumerate(kernel[1:], 1):  # Only one weighted copy of `images` is in memory at a time.
            found += weight * images.narrow(dimension, offset, side)
        images = found
    return images
