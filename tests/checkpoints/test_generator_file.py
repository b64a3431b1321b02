"""Generators as single files."""

import pytest
import torch
from safetensors.torch import save_file

from pggan.checkpoints.generator_file import load_generator, save_generator
from pggan.core.errors import UserError

CPU = torch.device("cpu")


@pytest.mark.slow
def test_a_run_a_checkpoint_and_a_file_give_the_same_averaged_generator(finished_run):
    places = (finished_run, finished_run / "checkpoints" / "000000160", finished_run / "generator.safetensors")
    found = [load_generator(str(place), CPU) for place in places]
    for generator in found:
        assert (generator.images, generator.resolution, generator.alpha) == (160, 16, 1.0)
        weights = zip(generator.network.weights, found[0].network.weights, strict=True)
        assert all(torch.equal(ours, first) for ours, first in weights)
        assert not any(weight.requires_grad for weight in generator.network.weights)


def test_a_generator_of_another_program_is_refused(tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "generator.safetensors")
    with pytest.raises(UserError, match="not a valid generator"):
        load_generator(str(tmp_path), CPU)


def test_numbers_that_are_not_finite_are_refused(finished_run, tmp_path):
    """Its images would be black, and metrics of them numbers like any others."""
    loaded = load_generator(str(finished_run), CPU)
    loaded.network.weights[-1].data.flatten()[2] = torch.nan
    save_generator(loaded, tmp_path / "damaged.safetensors")
    with pytest.raises(UserError, match=r"damaged.safetensors is damaged: its weights "):
        load_generator(str(tmp_path / "damaged.safetensors"), CPU)


@pytest.mark.parametrize("key", ["run", "init_from"])
def test_a_path_without_generator_is_refused_with_its_key_and_advice(tmp_path, key):
    with pytest.raises(UserError, match=rf"(?s){key}={tmp_path} has no generator.*first checkpoint"):
        load_generator(str(tmp_path), CPU, key)


def test_a_checkpoint_without_its_averaged_generator_is_refused_although_it_has_the_raw_one(newest):
    """A checkpoint's own generator.safetensors has the name that the averaged generator has in a run directory."""
    (newest / "generator_ema.safetensors").unlink()
    assert (newest / "generator.safetensors").is_file()
    with pytest.raises(UserError, match=f"run={newest} has no generator"):
        load_generator(str(newest), CPU)
