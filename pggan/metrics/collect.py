"""Images read once, block by block, for everything that wants to see them."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from pggan.core.devices import memory_problem, synchronize
from pggan.core.errors import UserError
from pggan.metrics.extractor import Extractor
from pggan.metrics.images import Images, to_device
from pggan.metrics.rank_partition import RankPartition

Progress = Callable[[str, int, int], None]  # called with what is done, blocks done, blocks in all


class Collector(ABC):
    """A store of facts about images 0 to `count` - 1, of which each rank sees its own blocks."""

    def __init__(self, count: int, partition: RankPartition) -> None:
        self.count, self.partition = count, partition
        self.seconds = 0.0  # spent in `add`

    @abstractmethod
    def add(self, images: Tensor) -> None:
        """Take the next block of this rank: uint8 [N, C, R, R]."""


class FeatureCollector(Collector):
    """The features of images, or of the images mirrored, in the order of their numbers."""

    def __init__(self, extractor: Extractor, count: int, partition: RankPartition, *, mirrored: bool = False) -> None:
        super().__init__(count, partition)
        self.extractor, self.mirrored = extractor, mirrored
        self.blocks: list[Tensor] = []
        self._gathered: Tensor | None = None

    def add(self, images: Tensor) -> None:
        self.blocks.append(self.extractor.features(images.flip(-1) if self.mirrored else images))

    def rows(self, count: int) -> Tensor:
        """The features float32 [count, F] of the first images, in host memory.  Called by all ranks."""
        if self._gathered is None:
            self._gathered = self.partition.all_gather(self.blocks)
        return self._gathered[:count]


@torch.no_grad()
def feed(
    images: Images, collectors: Sequence[Collector], partition: RankPartition, what: str, progress: Progress
) -> float:
    """Give each of `collectors` its images, which are read once; returns the seconds that reading took.

    Called by all ranks.  An error on one of them ends it on all: the others would wait for its results.  Raises
    UserError where the device has too little memory.
    """
    with partition.group.collective_errors():
        try:
            return _feed_own(images, collectors, partition, what, progress)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            problem = f"There is too little memory on {partition.group.device} for {what}: {memory_problem(error)}."
            raise UserError(problem, "Free some of it, or evaluate the run elsewhere, with devices=cpu.") from error


def _feed_own(
    images: Images, collectors: Sequence[Collector], partition: RankPartition, what: str, progress: Progress
) -> float:
    """The part of this rank."""
    device, reading = partition.group.device, 0.0
    own = partition.own(max((collector.count for collector in collectors), default=0))
    for number, block in enumerate(own):
        progress(what, number, len(own))
        start = time.perf_counter()
        pixels = to_device(images.read(block), device)
        synchronize(device)
        reading += time.perf_counter() - start
        for collector in collectors:
            if block.start < collector.count:
                start = time.perf_counter()
                collector.add(pixels[: collector.count - block.start])
                synchronize(device)
                collector.seconds += time.perf_counter() - start
    progress(what, len(own), len(own))
    return reading
