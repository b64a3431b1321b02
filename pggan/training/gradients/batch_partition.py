"""How a batch is divided among processes: in whole groups of minibatch stddev, as they are in one process.

The groups of a batch are its columns: of N images in groups of M, group g is made of images g, g + N/M, g + 2 N/M …
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from pggan.core.errors import UserError

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Division:
    """The part of every batch that process `rank` of `size` calculates.

    With `elastic`, a batch is cut into shards that don't depend on the number of processes, each calculated in one
    pass; a process has one or more of them.
    """

    rank: int
    size: int
    group: int  # images in a group of minibatch stddev, or the batch if that is smaller
    elastic: bool
    micro_batch: int | None  # the most images per pass, as configured
    most_shards: int = 4  # of a batch with `elastic`; more where `micro_batch` asks for smaller ones

    def pass_size(self, batch: int) -> int | None:
        """Images per pass that the division asks for; None leaves it free."""
        if not self.elastic:
            return self.micro_batch
        group = min(self.group, batch)
        columns = -(-(batch // group) // self.most_shards)
        if self.micro_batch is not None:
            columns = min(columns, max(self.micro_batch // group, 1))
        return columns * group

    def shards(self, batch: int) -> int:
        """Parts that a batch is cut into: one per process, or a fixed number with `elastic`."""
        size = self.pass_size(batch)
        return -(-batch // size) if self.elastic and size is not None else self.size

    def shards_of(self, rank: int, batch: int) -> range:
        """The parts that `rank` has."""
        count = self.shards(batch)
        return range(rank * count // self.size, (rank + 1) * count // self.size)

    def rows(self, batch: int) -> Indices:
        """The positions in a batch of this process's images, in the order in which they form a batch of their own."""
        group = min(self.group, batch)
        members = np.arange(batch).reshape(group, -1)  # [group, columns]
        columns, count, mine = members.shape[1], self.shards(batch), self.shards_of(self.rank, batch)
        size = self.pass_size(batch)
        if self.elastic and size is not None:
            width = size // group
            return members[:, mine.start * width : mine.stop * width].flatten()
        return members[:, mine.start * columns // count : mine.stop * columns // count].flatten()

    def largest_share(self, batch: int) -> int:
        """Images of a batch that the process with most of them has."""
        return max(len(replace(self, rank=rank).rows(batch)) for rank in range(self.size))

    def require_enough(self, key: str, batch: int) -> None:
        """Raise UserError unless every process gets a part of a `batch`, from `key`, all equal unless `elastic`."""
        groups = batch // min(self.group, batch)
        if self.elastic:
            if self.shards(batch) < self.size:
                more = " or more workers.shards" * (groups > self.most_shards)
                raise UserError(
                    f"A batch of {batch} ({key}) has {self.shards(batch)} shards in elastic training, too few for "
                    f"{self.size} processes.",
                    f"Take at most {self.shards(batch)} processes, or a larger {key}{more}.",
                )
        elif groups % self.size:
            uneven = "; elastic=true shares unevenly" * (groups > self.size)
            good = [size for size in range(1, groups + 1) if groups % size == 0]
            raise UserError(
                f"A batch of {batch} ({key}) has {groups} groups of {min(self.group, batch)} images for minibatch "
                f"stddev (model.stddev_group), which {self.size} processes can't share evenly.",
                f"Take {', '.join(map(str, good))} processes, or a {key} that is a multiple of "
                f"{min(self.group, batch) * self.size}{uneven}.",
            )


ALONE = Division(rank=0, size=1, group=1, elastic=False, micro_batch=None)
