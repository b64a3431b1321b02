"""`pggan sample`: grids and files of seeds."""

import numpy as np
import pytest
from PIL import Image

from pggan.cli.main import main
from pggan.sampling.latents import seed_latents


def pixels(path):
    return np.asarray(Image.open(path))


def test_sample_writes_a_grid_of_the_seeds_in_order(run_dir, generator, tmp_path, capsys):
    out = tmp_path / "new" / "faces.png"
    assert main(["sample", f"run={run_dir}", "seeds=[3,1,4]", "grid=2x2", f"out={out}", "zoom=2", "device=cpu"]) == 0
    assert "3 images at 16x16" in capsys.readouterr().out
    picture = pixels(out)
    assert picture.shape == (64, 64, 3)
    expected = generator.render(seed_latents([3, 1, 4], 8)).repeat(2, 1).repeat(2, 2)
    assert np.array_equal(picture[:32, :32], expected[0])
    assert np.array_equal(picture[:32, 32:], expected[1])
    assert np.array_equal(picture[32:, :32], expected[2])
    assert not picture[32:, 32:].any()


def test_sample_writes_one_file_per_seed_into_a_directory(run_dir, generator, tmp_path):
    assert main(["sample", f"run={run_dir}", "seeds=7-9", f"out={tmp_path / 'faces'}", "device=cpu"]) == 0
    assert sorted(path.name for path in (tmp_path / "faces").iterdir()) == ["seed-7.png", "seed-8.png", "seed-9.png"]
    expected = generator.render(seed_latents([8], 8))
    assert np.array_equal(pixels(tmp_path / "faces" / "seed-8.png"), expected[0])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["seeds=x"], "seeds="),
        (["seeds=[]"], "[1,5,9]"),
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
    assert main(["sample", f"run={run_dir}", "device=cpu", *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
