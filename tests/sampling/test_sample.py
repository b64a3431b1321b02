"""`sample`, `interpolate` and `inspect` on a small generator."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.checkpoints.read import load_generator
from pggan.cli.compose import compose, main
from pggan.config import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import validated
from pggan.run import train
from pggan.sampling.generate import render, render_settings
from pggan.sampling.latents import seed_latents


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory, labelled_data):
    """A run stopped while fading in 16x16, with three classes."""
    path = tmp_path_factory.mktemp("run")
    overrides = [
        f"data.path={labelled_data}",
        "data.labels=true",
        f"run_dir={path}",
        "schedule.final_resolution=16",
        "schedule.stable_images=16",
        "schedule.fade_images=32",
        "schedule.batch=8",
        "schedule.total_images=96",
        "model.fmap_max=8",
        "devices=cpu",
    ]
    train.run(validated(TrainConfig, compose("train", overrides)))
    return path


@pytest.fixture(scope="module")
def generator(run_dir):
    return load_generator(str(run_dir), torch.device("cpu"))


def stage(generator, **changes):
    options = {"resolution": None, "alpha": None, "truncation": 1.0, "label": None}
    return render_settings(generator, **{**options, **changes})


def pixels(path):
    return np.asarray(Image.open(path))


def test_the_newest_stage_is_drawn_unless_another_is_asked_for(generator):
    assert (stage(generator).resolution, stage(generator).alpha) == (16, 31 / 32)
    assert (stage(generator, resolution=16).resolution, stage(generator, resolution=16).alpha) == (16, 31 / 32)
    assert (stage(generator, resolution=8).resolution, stage(generator, resolution=8).alpha) == (8, 1.0)
    assert stage(generator, alpha=0.25).alpha == 0.25


@pytest.mark.parametrize("wrong", [{"resolution": 32}, {"resolution": 5}, {"alpha": 1.5}, {"label": 3}, {"label": -1}])
def test_a_stage_that_is_not_there_is_refused(generator, wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        stage(generator, **wrong)


def test_a_seed_gives_the_same_face_in_any_company(generator):
    alone = render(generator, seed_latents([5], 8), stage(generator))
    together = render(generator, seed_latents([1, 2, 3, 5, 8], 8), stage(generator))
    assert np.array_equal(alone[0], together[3])


def test_every_level_and_alpha_can_be_drawn(generator):
    latents = seed_latents([0, 1], 8)
    for resolution in (4, 8, 16):
        for alpha in (0.0, 0.5, 1.0):
            images = render(generator, latents, stage(generator, resolution=resolution, alpha=alpha))
            assert images.shape == (2, resolution, resolution, 3)
    lower = render(generator, latents, stage(generator, resolution=8))
    faded_out = render(generator, latents, stage(generator, resolution=16, alpha=0.0))
    assert np.array_equal(faded_out, lower.repeat(2, 1).repeat(2, 2))


def test_truncation_draws_faces_together(generator):
    latents = seed_latents(list(range(8)), 8)
    spread = [
        render(generator, latents, stage(generator, truncation=t)).astype(float).std(0).mean() for t in (0.0, 0.5, 1.0)
    ]
    assert spread[0] == 0
    assert spread[0] < spread[1] < spread[2]


def test_classes_differ(generator):
    latents = seed_latents([0], 8)
    images = [render(generator, latents, stage(generator, label=label)) for label in (0, 1, 2)]
    assert not np.array_equal(images[0], images[1])
    assert np.array_equal(images[0], render(generator, latents, stage(generator)))


def test_sample_writes_a_grid_of_the_seeds_in_order(run_dir, generator, tmp_path, capsys):
    out = tmp_path / "new" / "faces.png"
    assert main(["sample", f"run={run_dir}", "seeds=[3,1,4]", "grid=2x2", f"out={out}", "zoom=2", "devices=cpu"]) == 0
    assert "3 images at 16x16" in capsys.readouterr().out
    picture = pixels(out)
    assert picture.shape == (64, 64, 3)
    expected = render(generator, seed_latents([3, 1, 4], 8), stage(generator)).repeat(2, 1).repeat(2, 2)
    assert np.array_equal(picture[:32, :32], expected[0])
    assert np.array_equal(picture[:32, 32:], expected[1])
    assert np.array_equal(picture[32:, :32], expected[2])
    assert not picture[32:, 32:].any()


def test_sample_writes_one_file_per_seed_into_a_directory(run_dir, generator, tmp_path):
    assert main(["sample", f"run={run_dir}", "seeds=7-9", f"out={tmp_path / 'faces'}", "devices=cpu"]) == 0
    assert sorted(path.name for path in (tmp_path / "faces").iterdir()) == ["seed-7.png", "seed-8.png", "seed-9.png"]
    expected = render(generator, seed_latents([8], 8), stage(generator))
    assert np.array_equal(pixels(tmp_path / "faces" / "seed-8.png"), expected[0])


def test_a_strip_begins_and_ends_at_its_seeds(run_dir, generator, tmp_path):
    out = tmp_path / "strip.png"
    assert main(["interpolate", f"run={run_dir}", "seeds=[1,5,9]", "frames=5", f"out={out}", "devices=cpu"]) == 0
    picture = pixels(out)
    assert picture.shape == (16, 80, 3)
    ends = render(generator, seed_latents([1, 5, 9], 8), stage(generator))
    for frame, image in ((0, ends[0]), (2, ends[1]), (4, ends[2])):
        assert np.abs(picture[:, frame * 16 : frame * 16 + 16].astype(int) - image).max() <= 1


@pytest.mark.parametrize("path", ["slerp", "lerp", "loop", "walk"])
@pytest.mark.parametrize("ending", ["png", "webp", "gif"])
def test_every_path_comes_as_picture_and_as_animation(run_dir, tmp_path, path, ending):
    out = tmp_path / f"a.{ending}"
    arguments = [
        f"run={run_dir}",
        f"path={path}",
        "frames=6",
        "smoothness=0.5",
        "grid=3x2",
        f"out={out}",
        "devices=cpu",
    ]
    assert main(["interpolate", *arguments]) == 0
    with Image.open(out) as opened:
        assert opened.size == (48, 32)
        assert getattr(opened, "n_frames", 1) == (1 if ending == "png" else 6)


def test_one_seed_is_enough_for_a_walk_only(run_dir, tmp_path, capsys):
    arguments = ["interpolate", f"run={run_dir}", "seeds=3", f"out={tmp_path / 'a.png'}", "devices=cpu"]
    assert main([*arguments, "path=walk"]) == 0
    assert main(arguments) == 2
    assert "at least two" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["seeds=x"], "seeds="),
        (["seeds=[]"], "no seeds"),
        (["truncation=nan"], "truncation=nan"),
        ([f"out={__file__}/a.png"], "can't be a directory"),
        ([f"out={__file__}/faces"], "can't be a directory"),
        (["grid=2x2"], "no room"),
        (["resolution=64"], "4, 8, 16"),
        (["out=a.jpg"], ".png"),
        (["run=nowhere"], "no generator"),
    ],
)
def test_slips_are_refused_with_advice(run_dir, arguments, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sample", f"run={run_dir}", "devices=cpu", *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run=nowhere"], "no generator"),
        (["path=walk", "smoothness=inf"], "below infinity"),
        (["zoom=1100", "frames=2"], "the 16383 that such a file can have"),
    ],
)
def test_slips_of_interpolations_are_refused_and_leave_nothing(run_dir, arguments, hint, capsys, tmp_path):
    out = tmp_path / "new" / "a.webp"
    words = [f"run={run_dir}", "seeds=[1,5]", f"out={out}", "devices=cpu", *arguments]
    assert main(["interpolate", *words]) == 2
    assert hint in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.webp"))
    assert out.parent.exists() == ("zoom=1100" in arguments)


def test_inspect_prints_what_the_file_of_a_generator_holds(run_dir, capsys):
    assert main(["inspect", f"run={run_dir / 'generator.safetensors'}", "json=true"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["resolution"], facts["alpha"]) == (96, 16, 31 / 32)
    assert facts["parameters"]["generator"] > 0
    assert facts["architecture"]["resolution"] == 16


def test_inspect_prints_what_a_run_and_a_data_set_hold(run_dir, labelled_data, capsys):
    assert main(["inspect", f"run={run_dir}", "json=true"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["resolution"], facts["alpha"], facts["phase"]) == (96, 16, 31 / 32, "16x16 fade")
    assert set(facts["parameters"]) == {"generator", "discriminator"}
    assert len(facts["state_sha256"]) == 64
    assert main(["inspect", f"run={run_dir / 'checkpoints' / '000000096'}"]) == 0
    assert "16x16 fade" in capsys.readouterr().out
    assert main(["inspect", f"data={labelled_data}", "json=true"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["images"], facts["resolutions"], facts["classes"]) == (
        48,
        [4, 8, 16],
        ["class-0", "class-1", "class-2"],
    )


def test_inspect_looks_at_one_thing_that_is_there(tmp_path, capsys):
    assert main(["inspect"]) == 2
    assert main(["inspect", f"run={tmp_path}"]) == 2
    assert "no whole checkpoint" in capsys.readouterr().err
