"""The generators that come with the package."""

import numpy as np
import pytest

import pggan
from pggan.checkpoints.pretrained import FOLDER, path_of_run, pretrained_names
from pggan.core.errors import UserError

LIMIT = 2_000_000  # bytes of a file


def test_avatars_at_64x64_come_with_the_package():
    assert "avatars64" in pretrained_names()
    assert path_of_run("pretrained:avatars64") == FOLDER / "avatars64.safetensors"


@pytest.mark.parametrize("name", pretrained_names())
def test_a_generator_is_small_and_draws_faces_that_differ(name):
    assert path_of_run(f"pretrained:{name}").stat().st_size <= LIMIT
    faces = pggan.load(f"pretrained:{name}", device="cpu")
    images = np.stack([np.asarray(image, float) for image in faces.sample(seeds=[1, 2, 3, 4])])
    assert images.shape == (4, 64, 64, 3)
    # An untrained generator draws grey noise, and a collapsed one the same face for every seed.
    assert images.std((1, 2, 3)).min() > 20
    assert images.std(0).mean() > 10


def test_other_names_are_refused_with_those_that_there_are():
    with pytest.raises(UserError, match="no such generator") as refused:
        pggan.load("pretrained:celebahq")
    assert "pretrained:avatars64" in refused.value.remedy


def test_other_paths_are_paths():
    assert str(path_of_run("outputs/demo")) == "outputs/demo"
