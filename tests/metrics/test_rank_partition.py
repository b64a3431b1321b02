"""Images divided among ranks: every image once, whatever the number of ranks."""

from types import SimpleNamespace

import pytest
import torch

from pggan.metrics.rank_partition import RankPartition


@pytest.mark.parametrize("count", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_every_image_is_in_one_block_of_one_rank(count, ranks):
    seen = []
    for rank in range(ranks):
        partition = RankPartition.at(32, SimpleNamespace(rank=rank, world_size=ranks))
        seen += [number for block in partition.own(count) for number in block]
        assert all(block.start % 64 == 0 and len(block) <= 64 for block in partition.own(count))
    assert sorted(seen) == list(range(count))


def test_blocks_of_large_images_are_smaller_and_hold_whole_pairs():
    sizes = {side: RankPartition.at(side, SimpleNamespace(rank=0, world_size=1)).size for side in (4, 512, 1024, 4096)}
    assert sizes == {4: 64, 512: 64, 1024: 16, 4096: 2}


@pytest.mark.parametrize("rows", [[3, 3, 2], [3], [3, 1]])
def test_gathered_rows_are_in_the_order_of_the_blocks(rows):
    """As the ranks of a group of two would see it: each has every second block, some of them none."""
    starts = [sum(rows[:number]) for number in range(len(rows))]
    blocks = [torch.arange(start, start + count)[:, None] for start, count in zip(starts, rows, strict=True)]
    parts = [blocks[rank::2] for rank in range(2)]

    class Group:
        world_size = 2

        def __init__(self):
            self.asked = 0

        def all_gather_object(self, value):
            self.asked += 1
            if self.asked == 1:
                return [value, [[1], "int64"] if parts[1] else None]
            return [[len(part) for part in own] for own in parts]

        def all_gather(self, padded):
            other = torch.zeros_like(padded)
            for slot, part in enumerate(parts[1]):
                other[slot, : len(part)] = part
            return [padded, other]

    gathered = RankPartition(Group(), 3).all_gather(parts[0])
    assert gathered.flatten().tolist() == list(range(sum(rows)))
