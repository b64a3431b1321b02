"""How a batch is divided among ranks."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from pggan.core.errors import UserError
from pggan.optim.batch_partition import BatchPartition
from pggan.training.inputs import split_into_micro_batches


class Inputs:
    """Stands for the inputs of a step: it remembers which images of the batch it is made of."""

    def __init__(self, kept):
        self.latents_d = self.kept = kept
        self.reals = self

    def select(self, indices):
        return Inputs(self.kept[indices])

    def _replace(self, reals):
        assert torch.equal(reals.kept, self.kept)
        return self


@st.composite
def divisions(draw, elastic=None):
    """All ranks' parts of one batch, and the batch."""
    group, groups = draw(st.integers(1, 6)), draw(st.integers(1, 24))
    batch = draw(st.sampled_from([group * groups, draw(st.integers(1, group))]))  # or smaller than a group
    elastic = draw(st.booleans()) if elastic is None else elastic
    micro_batch_size = draw(st.none() | st.integers(1, 30))
    size = draw(st.integers(1, 8))
    chunks = draw(st.integers(1, 8))
    parts = [BatchPartition(rank, size, group, elastic, micro_batch_size, chunks) for rank in range(size)]
    try:
        parts[0].require_enough(batch)
    except UserError:
        assume(False)
    return parts, batch


@given(divisions())
def test_the_parts_make_the_whole_batch_each_image_once(case):
    parts, batch = case
    rows = np.concatenate([part.indices(batch) for part in parts])
    assert sorted(rows) == list(range(batch))
    assert all(len(part.indices(batch)) for part in parts)
    sizes = {len(part.indices(batch)) for part in parts}
    assert parts[0].largest_local_batch(batch) == max(sizes)
    assert parts[0].elastic or sizes == {batch // len(parts)}


@given(divisions())
def test_groups_of_minibatch_stddev_stay_whole_and_in_order(case):
    """Of N images in groups of M, group g is g, g + N/M, g + 2 N/M …; a part is a batch of its own of such groups."""
    parts, batch = case
    group = min(parts[0].stddev_group, batch)
    columns = batch // group
    found = []
    for part in parts:
        members = part.indices(batch).reshape(group, -1)  # as the layer will group them
        for column in members.T:
            assert list(column) == [column[0] + number * columns for number in range(group)]
            found.append(column[0])
    assert found == list(range(columns))


@pytest.mark.slow
@given(divisions(elastic=True))
def test_elastic_passes_are_the_same_images_on_any_number_of_ranks(case):
    parts, batch = case

    def passes(partition):
        share, size = Inputs(torch.from_numpy(partition.indices(batch))), partition.micro_batch_size(batch)
        return [tuple(part.kept.tolist()) for part in split_into_micro_batches(share, size, partition.stddev_group)]

    alone = dataclasses.replace(parts[0], rank=0, world_size=1)
    wanted = passes(alone)
    assert len(wanted) == alone.chunks(batch)
    assert [images for part in parts for images in passes(part)] == wanted
    numbers = [number for part in parts for number in part.chunks_of(part.rank, batch)]
    assert numbers == list(range(len(wanted)))
    shares = [len(part.chunks_of(part.rank, batch)) for part in parts]
    assert max(shares) - min(shares) <= 1
    if parts[0].configured_micro_batch_size is None:
        assert len(wanted) <= parts[0].most_chunks
    else:
        assert max(map(len, wanted)) <= max(parts[0].configured_micro_batch_size, min(parts[0].stddev_group, batch))


def test_micro_batches_are_whole_groups_of_at_most_the_size():
    for size, parts in ((None, [8]), (100, [8]), (5, [4, 4]), (1, [2] * 4)):  # one group is the least
        found = split_into_micro_batches(Inputs(torch.arange(8)), size, stddev_group=2)
        assert [len(part.kept) for part in found] == parts


def test_a_batch_that_ranks_can_not_share_is_refused_with_the_numbers_that_can():
    for batch in (24, 10, 3):  # groups, but not for five ranks; no groups; less than a group
        with pytest.raises(UserError, match="number of ranks, or make the batch a multiple of 20"):
            BatchPartition(0, 5, 4, False, None).require_enough(batch)
    for size, group, batch, most, chunks in ((5, 1, 64, 4, 4), (3, 4, 8, 4, 2), (3, 1, 64, 2, 2)):
        with pytest.raises(UserError, match=f"has {chunks} chunks, too few for {size}"):
            BatchPartition(0, size, group, True, None, most).require_enough(batch)
    for accepted in (BatchPartition(0, 8, 1, True, None, 8), BatchPartition(0, 8, 1, True, 8)):
        accepted.require_enough(64)  # smaller passes make more chunks
