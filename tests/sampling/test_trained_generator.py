"""`pggan.load` and what it gives."""

import subprocess
import sys

import numpy as np
import pytest
import torch

import pggan
from pggan.checkpoints.read import checkpoints_of
from pggan.core.errors import UserError


def test_a_run_a_checkpoint_and_a_file_give_the_same_generator(run_dir, generator):
    wanted = generator.render(generator.latents([1, 2]))
    for place in (run_dir, str(run_dir), checkpoints_of(run_dir)[-1], run_dir / "generator.safetensors"):
        assert np.array_equal(pggan.load(place, "cpu").render(generator.latents([1, 2])), wanted)


def test_it_says_what_it_is(generator):
    assert (generator.resolution, generator.alpha, generator.images) == (16, 31 / 32, 96)
    assert (generator.resolutions, generator.latent_size, generator.labels) == ((4, 8, 16), 8, 3)


@pytest.mark.parametrize("seeds", [[3, 4, 5], "3-5", range(3, 6), np.arange(3, 6), (seed for seed in (3, 4, 5))])
def test_seeds_can_be_written_in_many_ways(generator, seeds):
    assert torch.equal(generator.latents(seeds), generator.latents([3, 4, 5]))


def test_pictures_are_those_of_the_latents(generator):
    pictures = generator.sample([7, 8], resolution=8, truncation=0.5, label=2)
    arrays = generator.render(generator.latents([7, 8]), resolution=8, truncation=0.5, label=2)
    assert [picture.size for picture in pictures] == [(8, 8), (8, 8)]
    assert np.array_equal(np.stack([np.asarray(picture) for picture in pictures]), arrays)


def test_what_is_not_there_is_said(run_dir, generator):
    with pytest.raises(UserError, match="no generator"):
        pggan.load("nowhere")
    with pytest.raises(UserError, match="device=tpu"):
        pggan.load(run_dir, device="tpu")
    with pytest.raises(UserError, match="seeds=x"):
        generator.sample("x")


@pytest.mark.slow
def test_the_package_is_imported_without_torch():
    subprocess.run([sys.executable, "-c", "import sys, pggan; sys.exit('torch' in sys.modules)"], check=True)
