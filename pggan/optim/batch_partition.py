"""Divides a batch among ranks so that minibatch stddev has the same groups of images as in a single process.

With batch size N and group size M, group g has the images g, g + N/M, g + 2N/M …: column g of a matrix [M, N/M].
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pggan.core.errors import UserError


@dataclass(frozen=True)
class BatchPartition:
    """Tells which images of a batch `rank` gets, if there are `world_size` ranks.

    A batch is cut into chunks of images.  Without `elastic`, each rank gets one chunk.  With `elastic`, the number of
    chunks does not depend on `world_size`; each rank gets one or more chunks, with a separate pass for each chunk.
    """

    rank: int
    world_size: int
    stddev_group: int
    elastic: bool
    configured_micro_batch_size: int | None  # largest number of images in a backward pass; None: no limit
    most_chunks: int = 4  # with `elastic`: largest number of chunks, unless the micro-batch limit requires more chunks

    def chunk_size(self, batch: int) -> int:
        """The number of images in a chunk, for a batch of `batch` images; the last chunk may have fewer."""
        if not self.elastic:
            return -(-batch // self.world_size)
        group = min(self.stddev_group, batch)
        columns = -(-(batch // group) // self.most_chunks)
        if self.configured_micro_batch_size is not None:
            columns = min(columns, max(self.configured_micro_batch_size // group, 1))
        return columns * group

    def micro_batch_size(self, batch: int) -> int | None:
        return self.chunk_size(batch) if self.elastic else self.configured_micro_batch_size

    def chunks(self, batch: int) -> int:
        return -(-batch // self.chunk_size(batch))

    def chunks_of(self, rank: int, batch: int) -> range:
        count = self.chunks(batch)
        return range(rank * count // self.world_size, (rank + 1) * count // self.world_size)

    def indices(self, batch: int) -> NDArray[np.int64]:
        """The indices of this rank's images in the whole batch."""
        group, mine = min(self.stddev_group, batch), self.chunks_of(self.rank, batch)
        width = self.chunk_size(batch) // group
        members = np.arange(batch).reshape(group, -1)  # [images per group, number of groups]
        return members[:, mine.start * width : mine.stop * width].flatten()

    def largest_local_batch(self, batch: int) -> int:
        return max(len(replace(self, rank=rank).indices(batch)) for rank in range(self.world_size))

    def require_enough(self, batch: int) -> None:
        """Raise UserError unless ranks get whole minibatch-stddev groups and, if not `elastic`, equally many groups."""
        ranks = 1 if self.elastic else self.world_size
        unit = self.stddev_group * ranks
        if batch % unit and (ranks > 1 or batch > unit):
            problem = f"The batch does not divide into groups (batch {batch}, model.stddev_group={self.stddev_group})"
            problem += "." if ranks == 1 else f"; each of {ranks} ranks needs equally many groups."
            raise UserError(problem, f"Change the number of ranks, or make the batch a multiple of {unit}.")
        if self.elastic and self.chunks(batch) < self.world_size:
            problem = f"A batch of {batch} has {self.chunks(batch)} chunks, too few for {self.world_size} ranks."
            raise UserError(problem, "Use fewer ranks, a larger schedule.batch=, or more distributed.elastic_chunks=.")
