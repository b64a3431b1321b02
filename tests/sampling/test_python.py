"""The interface in Python: a method each, and training with a loss object."""

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file

import pggan
from pggan.checkpoints.generator_file import GENERATOR_FILE
from pggan.cli.main import main
from pggan.config.defaults import saved_config
from pggan.core.errors import EXIT_USER_ERROR, UserError
from pggan.run.loop import Run


class Hinge(pggan.Loss):
    def d_terms(self, real_scores, fake_scores):
        return {"D/hinge": F.relu(1 - real_scores) + F.relu(1 + fake_scores)}

    def g_terms(self, real_scores, fake_scores):
        return {"G/hinge": -fake_scores}


def test_pictures_sheets_and_paths(generator):
    assert generator.grid("0-3").size == (256, 256)
    assert generator.sample("0-3")._repr_png_()[:4] == b"\x89PNG"
    frames = generator.interpolate([1, 5], frames=3)
    assert np.array_equal(frames[0], generator.sample(1)[0])
    with pytest.raises(UserError, match="slerp"):
        generator.interpolate([1, 5], path="walk")


def test_a_film(generator, tmp_path):
    film = generator.film(tmp_path / "a.gif", [1, 5], frames=4)
    with Image.open(film.path) as frames:
        assert frames.size == (512, 512)
    assert film._repr_html_().startswith('<img src="data:image/gif;base64,R0lGOD')
    with pytest.raises(UserError, match="does not end in"):
        generator.film(tmp_path / "a.avi", [1, 5])


def test_directions_and_metrics(generator, labelled_data):
    assert torch.allclose(generator.directions(3).norm(dim=1), torch.ones(3))
    found = generator.evaluate(labelled_data, ["swd"], count=32)
    assert generator.evaluate(metrics=["swd"], count=32) == found  # by default, the images that the run was trained on


@pytest.fixture
def keys(labelled_data, tmp_path):
    """The words of a training of a second."""
    return ["debug=smoke", f"data.path={labelled_data}", "data.labels=false", "devices=cpu", f"run_dir={tmp_path}/run"]


def test_training_gives_its_generator_and_its_mistakes_are_user_errors(keys, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="Did you mean"):
        pggan.train(*keys, "dta.path=photos")
    with pytest.raises(UserError, match="exit code 2"):
        pggan.train(*keys, "data.path=nowhere")
    with pytest.raises(UserError, match="one device"):
        pggan.train(*keys, "devices=cpu:2", loss=Hinge())
    (tmp_path / "outputs").mkdir()
    for name in ("config.yaml", GENERATOR_FILE):  # files of another run, written last
        (tmp_path / "outputs" / name).touch()
        os.utime(tmp_path / "outputs" / name, (4e9, 4e9))
    monkeypatch.chdir(tmp_path)
    assert pggan.train(*keys[:-1]).images == 192


def test_a_run_with_a_loss_object_goes_on_with_such_an_object_alone(keys, tmp_path, monkeypatch, capsys):
    """Ctrl-C at the first report: the call says so, the command refuses the run, and the next call ends it."""
    after_step = Run.after_step

    def stop(self, phase, metrics):
        after_step(self, phase, metrics)
        self.interruption.wanted |= self.state.images == 64

    with monkeypatch.context() as patch:
        patch.setattr(Run, "after_step", stop)
        with pytest.raises(KeyboardInterrupt, match="To resume"):
            pggan.train(*keys, loss=Hinge())
    assert saved_config(tmp_path / "run" / "config.yaml")["loss"] == {"name": "object", "type": "Hinge"}
    assert main(["train", keys[-1]]) == EXIT_USER_ERROR
    assert "pggan.train(" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"loss\.type: Hinge -> Mild"):
        pggan.train(keys[-1], loss=type("Mild", (Hinge,), {})())
    assert pggan.train(keys[-1], loss=Hinge()).images == 192
    assert "Go on" not in capsys.readouterr().err  # `pggan train grow=` has no loss object
    assert "hinge" in (tmp_path / "run" / "metrics.jsonl").read_text()


class Small(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 8, 3), torch.nn.LeakyReLU(0.2), torch.nn.Conv2d(8, 1, 2))

    def forward(self, images):
        return super().forward(images).mean((1, 2, 3))


def test_a_discriminator_object_is_trained_and_the_command_refuses_its_name(keys, tmp_path, capsys):
    d = Small()
    torch.nn.utils.spectral_norm(d[0])
    d[2].requires_grad_(False)
    d(torch.zeros(1, 3, 4, 4))
    assert pggan.train(*keys, loss=Hinge(), discriminator=d).images == 192
    trained = load_file(tmp_path / "run" / "checkpoints" / "000000192" / "weights.safetensors")
    weights = {name: d.get_parameter(name) for name in ("0.weight_orig", "2.weight")}
    same = [torch.equal(trained[f"discriminator/module.{name}"], weight) for name, weight in weights.items()]
    assert same == [False, True]
    other = [*keys[:-1], f"run_dir={tmp_path}/other"]
    assert main(["train", *other, "model.discriminator=Small"]) == EXIT_USER_ERROR
    assert "discriminator=" in capsys.readouterr().err
    with pytest.raises(UserError, match="one score for each image"):
        pggan.train(*other, discriminator=d[0])


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ({"g_terms": lambda self, reals, fakes: {"G/mean": fakes.mean()}}, "g_terms returned G/mean: "),
        ({"g_terms": lambda self, reals, fakes: {"G/nan": fakes / 0}}, "g_terms returned G/nan: "),
        ({"g_terms": lambda self, reals, fakes: {"G/sign": (fakes > 0).int()}}, "g_terms returned G/sign: "),
        ({"g_terms": lambda self, reals, fakes: {"G/copy": fakes.detach()}}, "g_terms returned G/copy: "),
        ({"d_terms": lambda self, reals, fakes: fakes - reals}, "d_terms returned no terms: "),
    ],
)
def test_a_loss_of_a_wrong_shape_or_nan_or_without_gradient_is_refused(method, message):
    with pytest.raises(UserError, match=f"{message}(?s:.*)with a gradient, each with one finite number per image"):
        pggan.train("data.path=nowhere", loss=type("Own", (Hinge,), method)())


@pytest.mark.parametrize("loss", [Hinge, "hinge", torch.nn.Linear(1, 1)])
def test_what_is_no_loss_is_refused(loss):
    with pytest.raises(UserError, match="is no loss"):
        pggan.train("data.path=nowhere", loss=loss)
