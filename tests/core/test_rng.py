"""Random numbers are a function of (seed, purpose, count) alone."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pggan.core.rng import StepRng, counter_seed

CPU = torch.device("cpu")
NUMBERS = 4096


def normal(seed=0, purpose="a", images=0):
    return StepRng(seed, images, CPU).normal(purpose, NUMBERS)


def test_equal_arguments_draw_equal_numbers():
    assert torch.equal(normal(3, "latents", 128), normal(3, "latents", 128))
    one, other = StepRng(3, 128, CPU), StepRng(3, 128, CPU)
    assert torch.equal(one.uniform("mix", 5, 1), other.uniform("mix", 5, 1))
    assert torch.equal(one.integers("labels", 9, 50), other.integers("labels", 9, 50))


def test_streams_of_different_purposes_seeds_and_counts_are_uncorrelated():
    streams = [normal(seed, purpose, images) for seed in (0, 1) for purpose in ("a", "b", "mix") for images in (0, 16)]
    correlation = np.corrcoef(torch.stack(streams).double().numpy())
    off = correlation[~np.eye(len(streams), dtype=bool)]
    assert np.abs(off).max() < 5 / np.sqrt(NUMBERS)  # 5 standard errors


@settings(max_examples=200)
@given(
    st.tuples(st.integers(0, 999), st.text("ab/1", max_size=4), st.integers(0, 10**9)),
    st.tuples(st.integers(0, 999), st.text("ab/1", max_size=4), st.integers(0, 10**9)),
)
def test_counter_seeds_are_equal_only_for_equal_arguments(first, second):
    assert (counter_seed(*first) == counter_seed(*second)) == (first == second)
    assert 0 <= counter_seed(*first) < 2**63
