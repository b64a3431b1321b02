"""How a batch is divided among ranks: in whole groups of minibatch stddev, the same groups as in one process.

Of N images in groups of M, group g is made of images g, g + N/M, g + 2 N/M …: it is a column of [M, N/M].
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pggan.core.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class BatchPartition:
    """The local batch of `rank`, of `world_size` ranks.

    A batch is cut into chunks: one per rank or, with `elastic`, a number that does not depend on the number of ranks,
    so that a rank has one or more of them, each calculated in one pass.
    """

    rank: int
    world_size: int
    stddev_group: int
    elastic: bool
    configured_micro_batch_size: int | None  # most images in a micro-batch
    most_chunks: int = 4  # of a batch with `elastic`; more where `configured_micro_batch_size` asks for smaller ones

    def chunk_size(self, batch: int) -> int:
        """Images in a chunk of a `batch`; with `elastic`, the last chunk may have fewer."""
        if not self.elastic:
            return -(-batch // self.world_size)
        group = min(self.stddev_group, batch)
        columns = -(-(batch // group) // self.most_chunks)
        if self.configured_micro_batch_size is not None:
            columns = min(columns, max(self.configured_micro_batch_size // group, 1))
        return columns * group

    def micro_batch_size(self, batch: int) -> int | None:
        """Images per pass that the partition asks for; None leaves it free."""
        return self.chunk_size(batch) if self.elastic else self.configured_micro_batch_size

    def chunks(self, batch: int) -> int:
        """The number of chunks of a `batch`."""
        return -(-batch // self.chunk_size(batch))

    def chunks_of(self, rank: int, batch: int) -> range:
        """The chunks of `rank`."""
        count = self.chunks(batch)
        return range(rank * count // self.world_size, (rank + 1) * count // self.world_size)

    def indices(self, batch: int) -> Indices:
        """The positions in a batch of this rank's images, in the order in which they form a batch of their own."""
        group, mine = min(self.stddev_group, batch), self.chunks_of(self.rank, batch)
        width = self.chunk_size(batch) // group
        members = np.arange(batch).reshape(group, -1)  # [group, columns]
        return members[:, mine.start * width : mine.stop * width].flatten()

    def largest_local_batch(self, batch: int) -> int:
        """Images of a batch that the rank with most of them has."""
        return max(len(replace(self, rank=rank).indices(batch)) for rank in range(self.world_size))

    def require_enough(self, batch: int) -> None:
        """Raise UserError unless every rank gets whole groups of a `batch`, equally many unless `elastic`."""
        unit = min(self.stddev_group, batch) * (1 if self.elastic else self.world_size)
        if batch % unit:
            problem = f"A batch of {batch} does not divide into groups of {self.stddev_group} (model.stddev_group)"
            ranks = f", equally many for {self.world_size} ranks." if self.world_size > 1 else "."
            raise UserError(problem + ranks, f"Use a batch that is a multiple of {unit}, or another number of ranks.")
        if self.elastic and self.chunks(batch) < self.world_size:
            problem = f"A batch of {batch} has {self.chunks(batch)} chunks, too few for {self.world_size} ranks."
            raise UserError(problem, "Use fewer ranks, a larger schedule.batch=, or more distributed.elastic_chunks=.")
