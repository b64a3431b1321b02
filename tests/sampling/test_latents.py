"""Latents of seeds, and files of latents."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pggan.core.errors import UserError
from pggan.sampling.latents.latents import load_latents, save_latents, seed_latents

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


def test_latents_survive_a_file(tmp_path):
    save_latents(keys(3), tmp_path / "a.safetensors", ["0", "1", "2"])
    assert torch.equal(load_latents(tmp_path / "a.safetensors", SIZE), keys(3))


@pytest.mark.parametrize(
    ("tensors", "problem"),
    [
        ({"latents": torch.zeros(2, SIZE)}, "a vector is 0"),
        ({"latents": torch.full((1, SIZE), math.nan)}, "not finite"),
        ({"latents": torch.ones(1, SIZE - 1)}, "63 numbers"),
        ({"latents": torch.ones(SIZE)}, "shape"),
        ({"weights": torch.ones(1, SIZE)}, "no tensor 'latents'"),
    ],
)
def test_files_that_hold_no_latents_of_this_generator_are_refused(tensors, problem, tmp_path):
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=problem):
        load_latents(tmp_path / "a.safetensors", SIZE)


def test_what_is_not_such_a_file_is_refused(tmp_path):
    (tmp_path / "a.safetensors").write_text("latents")
    for path in ("a.safetensors", "missing.safetensors", "."):
        with pytest.raises(UserError, match="latents="):
            load_latents(tmp_path / path, SIZE)
