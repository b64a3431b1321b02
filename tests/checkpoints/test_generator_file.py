"""Generators as single files, and those that come with the package."""

import numpy as np
import pytest
import torch

import pggan
from pggan.checkpoints.generator_file import load_generator, path_of_run, pretrained_names, save_generator
from pggan.core.errors import UserError

CPU = torch.device("cpu")


def test_a_run_a_checkpoint_a_file_and_a_checkpoint_of_an_earlier_version_give_the_same_generator(
    finished_run, earlier
):
    kept = "checkpoints/000000160"
    places = finished_run, finished_run / kept, finished_run / "generator.safetensors", earlier / kept
    found = [load_generator(str(place), CPU) for place in places]
    for generator in found:
        assert (generator.images, generator.resolution, generator.alpha) == (160, 16, 1.0)
        weights = zip(generator.network.weights, found[0].network.weights, strict=True)
        assert all(torch.equal(ours, first) for ours, first in weights)
        assert not any(weight.requires_grad for weight in generator.network.weights)
    assert load_generator(str(finished_run / "checkpoints" / "000000128"), CPU).images == 128


def test_numbers_that_are_not_finite_are_refused(finished_run, tmp_path):
    """Its images would be black, and metrics of them numbers like any others."""
    loaded = load_generator(str(finished_run), CPU)
    loaded.network.weights[-1].data.flatten()[2] = torch.nan
    save_generator(loaded, tmp_path / "damaged.safetensors")
    with pytest.raises(UserError, match=r"damaged.safetensors is damaged: its weights "):
        load_generator(str(tmp_path / "damaged.safetensors"), CPU)


@pytest.mark.parametrize("name", pretrained_names())
def test_a_generator_of_the_package_is_small_and_draws_faces_that_differ(name):
    assert path_of_run(f"pretrained:{name}").stat().st_size <= 4_000_000
    images = np.stack(
        [np.asarray(face, float) for face in pggan.load(f"pretrained:{name}", "cpu").sample([1, 2, 3, 4])]
    )
    assert images.shape == (4, 64, 64, 3)
    # An untrained generator draws grey noise, and a collapsed one the same face for every seed.
    assert images.std((1, 2, 3)).min() > 20
    assert images.std(0).mean() > 10
