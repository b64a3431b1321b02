"""The partition of numbered images among the ranks, in blocks that are the same whatever the number of ranks.

Every calculation is done per block, and results are put back in the order of the images: so a metric has the same bits
on any number of ranks with as many CPU threads each.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup

MAX_IMAGES = 64  # in a block
BLOCK_PIXELS = 2**24  # in a block, and channel: at 1024x1024, 16 images


@dataclass(frozen=True)
class RankPartition:
    """Blocks of `size` images, an even number: block b belongs to rank b modulo the number of ranks."""

    group: ProcessGroup
    size: int

    @classmethod
    def at(cls, resolution: int, group: ProcessGroup) -> "RankPartition":
        """The partition of images of side `resolution`."""
        return cls(group, min(MAX_IMAGES, max(BLOCK_PIXELS // resolution**2, 2)))

    def blocks(self, count: int) -> list[range]:
        """The numbers of images 0 to `count` - 1, in blocks."""
        return [range(start, min(start + self.size, count)) for start in range(0, count, self.size)]

    def own(self, count: int) -> list[range]:
        """The blocks of this rank."""
        return self.blocks(count)[self.group.rank :: self.group.world_size]

    def all_gather(self, blocks: Sequence[Tensor]) -> Tensor:
        """The rows of all blocks, in order, on every rank; `blocks` holds those of this rank's blocks.

        The number of rows may differ from block to block; everything else about them is the same.
        """
        if self.group.world_size == 1:
            return torch.cat(list(blocks))
        about = [list(blocks[0].shape[1:]), str(blocks[0].dtype).removeprefix("torch.")] if blocks else None
        shape, kind = next(known for known in self.group.all_gather_object(about) if known is not None)
        rows = self.group.all_gather_object([len(block) for block in blocks])
        slots, most = max(map(len, rows)), max(max(own, default=0) for own in rows)
        padded = torch.zeros(slots, most, *shape, dtype=getattr(torch, kind))
        for slot, block in enumerate(blocks):
            padded[slot, : len(block)] = block
        everyone = self.group.all_gather(padded)
        in_order = ((slot, rank) for slot in range(slots) for rank in range(len(rows)) if slot < len(rows[rank]))
        return torch.cat([everyone[rank][slot, : rows[rank][slot]] for slot, rank in in_order])
