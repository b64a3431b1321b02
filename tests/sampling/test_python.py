"""The interface in Python: a method each, and training with a loss object."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

import pggan
from pggan.core.errors import UserError


class Hinge(pggan.Loss):
    def d_terms(self, real_scores, fake_scores):
        return {"D/hinge": F.relu(1 - real_scores) + F.relu(1 + fake_scores)}

    def g_terms(self, real_scores, fake_scores):
        return {"G/hinge": -fake_scores}


class Wrong(Hinge):
    def g_terms(self, real_scores, fake_scores):
        return {"G/hinge": fake_scores.mean()}


class Infinite(Hinge):
    def g_terms(self, real_scores, fake_scores):
        return {"G/hinge": fake_scores / 0}


def test_pictures_sheets_and_paths(generator):
    assert generator.grid("0-3").size == (256, 256)
    assert generator.sample("0-3")._repr_png_()[:4] == b"\x89PNG"
    frames = generator.interpolate([1, 5], frames=3)
    assert np.array_equal(frames[0], generator.sample(1)[0])
    with pytest.raises(UserError, match="slerp"):
        generator.interpolate([1, 5], path="walk")


def test_a_film(generator, tmp_path):
    with Image.open(generator.film(tmp_path / "a.gif", [1, 5], frames=4)) as film:
        assert film.size == (512, 512)
    with pytest.raises(UserError, match="does not end in"):
        generator.film(tmp_path / "a.avi", [1, 5])


def test_directions_and_metrics(generator, labelled_data):
    assert torch.allclose(generator.directions(3).norm(dim=1), torch.ones(3))
    assert generator.evaluate(labelled_data, ["swd"], count=32)


@pytest.mark.parametrize("loss", [None, Hinge()])
def test_training_gives_a_generator(labelled_data, tmp_path, loss):
    keys = [
        "debug=smoke",
        f"data.path={labelled_data}",
        "data.labels=false",
        "devices=cpu",
        f"run_dir={tmp_path / 'run'}",
    ]
    assert pggan.train(*keys, "devices=cpu", loss=loss).images > 0
    assert ("hinge" in (tmp_path / "run" / "metrics.jsonl").read_text()) == (loss is not None)


@pytest.mark.parametrize("loss", [Wrong(), Infinite()])
def test_a_loss_of_a_wrong_shape_or_nan_is_refused(loss):
    with pytest.raises(UserError, match="8 finite numbers"):
        pggan.train("data.path=nowhere", loss=loss)
