"""Sums whose order does not depend on the number of ranks."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pggan.optim.elastic import add_chunk, nodes_of, tree_sum


def numbers(count, seed=0):
    """Of very different sizes, so that another order of adding gives other bits."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-12, 12, (count, 64), generator=generator)
    return torch.randn(count, 64, generator=generator) * 2.0**exponents


def reference(values):
    """The same tree by its definition: the left half is the largest power of two that leaves something."""
    if len(values) == 1:
        return values[0]
    half = 1 << ((len(values) - 1).bit_length() - 1)
    return reference(values[:half]) + reference(values[half:])


def summed(values, cuts):
    """By as many ranks as there are cuts, simulated: what each one adds up, then all of it."""
    sums = {}
    for start, end in zip([0, *cuts], [*cuts, len(values)], strict=True):
        own = {}
        for chunk in range(start, end):
            add_chunk(own, chunk, values[chunk].clone())
        assert sorted(own, key=lambda node: node.start) == nodes_of(range(start, end))
        sums |= own
    return tree_sum(sums, len(values))


@given(st.data(), st.integers(1, 20), st.integers(0, 100))
def test_the_sum_is_the_same_bits_for_any_number_of_ranks_and_any_division(data, count, seed):
    values = numbers(count, seed)
    wanted = reference(values)
    cuts = sorted(data.draw(st.sets(st.integers(1, count - 1)) if count > 1 else st.just(set())))
    assert summed(values, cuts).equal(wanted)
    assert summed(values, []).equal(wanted)


def test_another_order_would_have_given_other_bits():
    values = numbers(7)
    assert not values.sum(0).equal(reference(values))
    assert not torch.stack(list(values)[::-1]).cumsum(0)[-1].equal(reference(values))


@pytest.mark.parametrize(
    ("chunks", "nodes"),
    [
        (range(0, 4), [range(4)]),
        (range(1, 4), [range(1, 2), range(2, 4)]),
        (range(2, 3), [range(2, 3)]),
        (range(0, 7), [range(4), range(4, 6), range(6, 7)]),
        (range(5, 5), []),
    ],
)
def test_a_rank_sends_what_it_could_not_add_up(chunks, nodes):
    assert nodes_of(chunks) == nodes


def test_nothing_is_copied_that_need_not_be():
    """A chunk's tensor is kept, and sums are made in place of their left halves."""
    values = list(numbers(4))
    own = {}
    for chunk, value in enumerate(values):
        add_chunk(own, chunk, value)
    assert tree_sum(own, 4) is values[0]
