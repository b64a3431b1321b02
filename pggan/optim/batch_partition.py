"""How a batch is divided among ranks: in whole groups of minibatch stddev, as they are in one process.

The groups of a batch are its columns: of N images in groups of M, group g is made of images g, g + N/M, g + 2 N/M …
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pggan.config import TrainerConfig
from pggan.core.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class BatchPartition:
    """The part of every batch that `rank` of `world_size` calculates.

    With `elastic`, a batch is cut into chunks that don't depend on the number of ranks, each calculated in one pass; a
    rank has one or more of them.
    """

    rank: int
    world_size: int
    stddev_group: int
    elastic: bool
    configured_size: int | None  # the most images per pass
    most_chunks: int = 4  # of a batch with `elastic`; more where `configured_size` asks for smaller ones

    @classmethod
    def of(
        cls, config: TrainerConfig, batches: Iterable[int], world_size: int, rank: int = 0, key: str = "schedule.batch"
    ) -> "BatchPartition":
        """The partition that `config` asks for; raises UserError when one of `batches`, from `key`, can't be divided."""
        size, chunks = config.compute.micro_batch_size, config.distributed.elastic_chunks
        partition = cls(rank, world_size, config.model.stddev_group, config.elastic, size, chunks)
        for batch in batches:
            partition.require_enough(key, batch)
        return partition

    def micro_batch_size(self, batch: int) -> int | None:
        """Images per pass that the partition asks for; None leaves it free."""
        if not self.elastic:
            return self.configured_size
        group = min(self.stddev_group, batch)
        columns = -(-(batch // group) // self.most_chunks)
        if self.configured_size is not None:
            columns = min(columns, max(self.configured_size // group, 1))
        return columns * group

    def chunks(self, batch: int) -> int:
        """Parts that a batch is cut into: one per rank, or a fixed number with `elastic`."""
        size = self.micro_batch_size(batch)
        return -(-batch // size) if self.elastic and size is not None else self.world_size

    def chunks_of(self, rank: int, batch: int) -> range:
        """The chunks that `rank` has."""
        count = self.chunks(batch)
        return range(rank * count // self.world_size, (rank + 1) * count // self.world_size)

    def indices(self, batch: int) -> Indices:
        """The positions in a batch of this rank's images, in the order in which they form a batch of their own."""
        group = min(self.stddev_group, batch)
        members = np.arange(batch).reshape(group, -1)  # [group, columns]
        columns, count, mine = members.shape[1], self.chunks(batch), self.chunks_of(self.rank, batch)
        size = self.micro_batch_size(batch)
        if self.elastic and size is not None:
            width = size // group
            return members[:, mine.start * width : mine.stop * width].flatten()
        return members[:, mine.start * columns // count : mine.stop * columns // count].flatten()

    def largest_part(self, batch: int) -> int:
        """Images of a batch that the rank with most of them has."""
        return max(len(replace(self, rank=rank).indices(batch)) for rank in range(self.world_size))

    def require_enough(self, key: str, batch: int) -> None:
        """Raise UserError unless every rank gets a part of a `batch`, from `key`, all equal unless `elastic`."""
        group = min(self.stddev_group, batch)
        groups = batch // group
        if self.elastic:
            if self.chunks(batch) < self.world_size:
                more = " or more distributed.elastic_chunks" * (groups > self.most_chunks)
                raise UserError(
                    f"A batch of {batch} ({key}) has {self.chunks(batch)} chunks in elastic training, too few for "
                    f"{self.world_size} ranks.",
                    f"Take at most {self.chunks(batch)} ranks, or a larger {key}{more}.",
                )
        elif groups % self.world_size:
            uneven = "; elastic=true shares unevenly" * (groups > self.world_size)
            good = [size for size in range(1, groups + 1) if groups % size == 0]
            raise UserError(
                f"A batch of {batch} ({key}) has {groups} groups of {group} images for minibatch stddev "
                f"(model.stddev_group), which {self.world_size} ranks can't share evenly.",
                f"Take {', '.join(map(str, good))} ranks, or a {key} that is a multiple of "
                f"{group * self.world_size}{uneven}.",
            )


WHOLE_BATCH = BatchPartition(rank=0, world_size=1, stddev_group=1, elastic=False, configured_size=None)
