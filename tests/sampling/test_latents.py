"""Latents of seeds."""

import math

import numpy as np
import torch

from pggan.sampling.latents import seed_latents

SIZE = 64


def keys(count, size=SIZE):
    return seed_latents(list(range(count)), size)


def test_a_seed_has_the_same_latent_in_any_company():
    alone = seed_latents([7], SIZE)[0]
    assert torch.equal(seed_latents([3, 7, 100, 7], SIZE)[1], alone)
    assert torch.equal(seed_latents([3, 7, 100, 7], SIZE)[3], alone)


def test_different_seeds_have_unrelated_latents():
    correlation = np.corrcoef(keys(20, 512).numpy())
    assert np.abs(correlation[~np.eye(20, dtype=bool)]).max() < 5 / math.sqrt(512)


def test_latents_of_seeds_are_standard_normal():
    latents = keys(200, 512).double()
    assert abs(latents.mean()) < 0.02
    assert abs(latents.var() - 1) < 0.02
