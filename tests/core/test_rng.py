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


def test_normal_numbers_have_the_moments_of_the_normal_distribution():
    numbers = StepRng(0, 0, CPU).normal("moments", 200_000).double()
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.var() - 1) < 0.02
    assert abs((numbers**3).mean()) < 0.04
    assert abs((numbers**4).mean() - 3) < 0.1


def test_uniform_numbers_lie_in_the_half_open_unit_interval_evenly():
    numbers = StepRng(0, 0, CPU).uniform("moments", 200_000).double()
    assert numbers.min() >= 0
    assert numbers.max() < 1
    assert abs(numbers.mean() - 1 / 2) < 0.005
    assert abs(numbers.var() - 1 / 12) < 0.002
    counts = np.histogram(numbers.numpy(), bins=10, range=(0, 1))[0]
    assert np.abs(counts / 20_000 - 1).max() < 0.05


@settings(max_examples=200)
@given(
    st.tuples(st.integers(0, 999), st.text("ab/1", max_size=4), st.integers(0, 10**9)),
    st.tuples(st.integers(0, 999), st.text("ab/1", max_size=4), st.integers(0, 10**9)),
)
def test_counter_seeds_are_equal_only_for_equal_arguments(first, second):
    assert (counter_seed(*first) == counter_seed(*second)) == (first == second)
    assert 0 <= counter_seed(*first) < 2**63
