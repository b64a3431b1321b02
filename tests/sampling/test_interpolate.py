"""`pggan interpolate`: strips, grids and animations."""

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.compose import compose
from pggan.cli.main import main
from pggan.config import InterpolateConfig
from pggan.core.validation import validated
from pggan.sampling.interpolate import latents_of_path
from pggan.sampling.latents import seed_latents


def pixels(path):
    return np.asarray(Image.open(path))


def test_a_strip_begins_and_ends_at_its_seeds(run_dir, generator, tmp_path):
    out = tmp_path / "strip.png"
    assert main(["interpolate", f"run={run_dir}", "seeds=[1,5,9]", "frames=5", f"out={out}", "device=cpu"]) == 0
    picture = pixels(out)
    assert picture.shape == (16, 80, 3)
    ends = generator.render(seed_latents([1, 5, 9], 8))
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
        "device=cpu",
    ]
    assert main(["interpolate", *arguments]) == 0
    with Image.open(out) as opened:
        assert opened.size == (48, 32)
        assert getattr(opened, "n_frames", 1) == (1 if ending == "png" else 6)


def test_one_seed_is_enough_for_a_walk_only(run_dir, tmp_path, capsys):
    arguments = ["interpolate", f"run={run_dir}", "seeds=3", f"out={tmp_path / 'a.png'}", "device=cpu"]
    assert main([*arguments, "path=walk"]) == 0
    assert main(arguments) == 2
    assert "at least two" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["run=nowhere"], "no generator"),
        (["path=walk", "smoothness=inf"], "smoothness=inf"),
        (["grid=32x1", "zoom=32", "frames=2"], "frames of 16384x512 pixels are more than the 16383 of such a file"),
    ],
)
def test_slips_of_interpolations_are_refused_and_leave_nothing(run_dir, arguments, hint, capsys, tmp_path):
    out = tmp_path / "new" / "a.webp"
    words = [f"run={run_dir}", "seeds=[1,5]", f"out={out}", "device=cpu", *arguments]
    assert main(["interpolate", *words]) == 2
    assert hint in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.webp"))
    assert out.parent.exists() == ("zoom=32" in arguments)


@pytest.mark.parametrize("path", ["slerp", "loop", "walk"])
def test_path_n_of_a_grid_goes_through_every_seed_plus_a_thousand_n(path):
    words = ["run=x", f"path={path}", "frames=6", "smoothness=2"]
    config = validated(InterpolateConfig, compose("interpolate", [*words, "seeds=[3,4]"]))
    here, there = latents_of_path(config, [3, 4], 2, 16), latents_of_path(config, [2003, 2004], 0, 16)
    assert torch.equal(here, there)
    assert not torch.equal(here, latents_of_path(config, [3, 4], 1, 16))
