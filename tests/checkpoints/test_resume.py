"""Where a run starts, which changes are refused then, and which networks another run's weights fit."""

import shutil
from dataclasses import replace

import pytest

from pggan.checkpoints.read import newest_checkpoint
from pggan.checkpoints.resume import find_resume_point, load_weights
from pggan.core.architecture import Resampling, Stem
from pggan.core.errors import UserError
from pggan.run import train

# Another value of numbers that layers of one resolution depend on, and of others.
OTHER_KIND = {"fmap_max": 4, "resampling": Resampling.unfused, "stem": Stem.unit_bias}
SAME_KIND = {"resolution": 32, "channels": 1, "num_classes": 3, "bilateral": 4}


@pytest.fixture(scope="module")
def checkpoint(finished_run):
    found, _ = newest_checkpoint(finished_run)
    return found


@pytest.mark.parametrize("place", ["", "generator.safetensors"])
def test_weights_of_networks_of_another_kind_are_refused_with_what_differs(finished_run, checkpoint, place):
    for field, value in OTHER_KIND.items():
        ours, before = replace(checkpoint.architecture, **{field: value}), getattr(checkpoint.architecture, field)
        with pytest.raises(UserError) as caught:
            load_weights(str(finished_run / place), ours)
        assert caught.value.problem.endswith(f" fit the networks of this run ({field}: {before} -> {value}).")


def test_weights_of_networks_that_differ_in_anything_else_are_taken(finished_run, checkpoint):
    found = load_weights(str(finished_run), replace(checkpoint.architecture, **SAME_KIND))
    assert set(found) == {"generator", "discriminator", "generator_ema"}
    alone = load_weights(str(finished_run / "generator.safetensors"), checkpoint.architecture)
    assert set(alone) == {"generator", "generator_ema"}  # G begins as its average, too


@pytest.fixture
def own(finished_run, tmp_path):
    """The directory of a run with checkpoints at 128 and 160 images."""
    shutil.copytree(finished_run / "checkpoints", tmp_path / "own" / "checkpoints")
    return tmp_path / "own"


def test_a_run_with_checkpoints_of_its_own_no_longer_needs_the_one_that_it_began_at(own, tmp_path):
    began = tmp_path / "gone" / "checkpoints" / "000000128"
    checkpoint, notes = find_resume_point(str(began), own)
    assert checkpoint.directory == own / "checkpoints" / "000000160"
    assert notes == [f"Ignoring resume={began}: this run continues from its own newest checkpoint."]


def test_a_run_goes_on_at_its_newest_checkpoint_alone(own):
    for resume in (own, own / "checkpoints" / "000000160"):
        assert find_resume_point(str(resume), own)[0].images == 160
    for images in (64, 128):
        with pytest.raises(UserError, match=f"{images:09d} is not the newest checkpoint"):
            find_resume_point(str(own / "checkpoints" / f"{images:09d}"), own)


def test_a_run_that_is_complete_is_not_saved_again(run_dir, newest, tiny_config):
    before = newest.stat()
    assert train.run(tiny_config(f"run_dir={run_dir}")) == 0
    assert newest.stat().st_ino == before.st_ino
