"""`pggan sample`: grids and files of seeds."""

import numpy as np
import pytest
from PIL import Image

from pggan.cli.main import main
from pggan.sampling.files import PAPER
from pggan.sampling.generate import seed_latents
from pggan.sampling.latents import move, principal_directions, save_vectors


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
    assert (picture[32:, 32:] == PAPER).all()


def test_sample_writes_one_file_per_seed_into_a_directory(run_dir, generator, tmp_path):
    assert main(["sample", f"run={run_dir}", "seeds=7-9", f"out={tmp_path / 'faces'}", "device=cpu"]) == 0
    assert sorted(path.name for path in (tmp_path / "faces").iterdir()) == [f"seed-00000{n}.png" for n in (7, 8, 9)]
    expected = generator.render(seed_latents([8], 8))
    assert np.array_equal(pixels(tmp_path / "faces" / "seed-000008.png"), expected[0])


def test_without_a_place_each_sheet_is_a_new_file_in_the_run(run_dir, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        assert main(["sample", f"run={run_dir}", "seeds=1,2", "device=cpu"]) == 0
        assert pixels(run_dir / "samples" / f"sample-00{number}.png").shape == (128, 256, 3)
    assert list(tmp_path.iterdir()) == []
    lone = tmp_path / "lone.safetensors"
    lone.write_bytes((run_dir / "generator.safetensors").read_bytes())
    assert main(["sample", f"run={lone}", "seeds=1", "device=cpu"]) == 0
    assert capsys.readouterr().out.splitlines()[-2].startswith("sample-001.png")


def test_files_of_latents_are_drawn_at_several_strengths_of_a_direction(run_dir, generator, tmp_path):
    latents = seed_latents([5, 6], 8)
    for number in (0, 1):
        save_vectors("latents", latents[number : number + 1], tmp_path / f"{number}.safetensors", {})
    directions = principal_directions(generator.network, 3, 0)
    save_vectors("directions", directions, tmp_path / "d.safetensors", {})
    files = f"{tmp_path / '0.safetensors'},{tmp_path / '1.safetensors'}"
    arguments = [f"latents={files}", f"direction={tmp_path / 'd.safetensors'}:1", "strength=-2,0,2", "zoom=1"]
    assert main(["sample", f"run={run_dir}", *arguments, f"out={tmp_path / 'a.png'}", "device=cpu"]) == 0
    rows = [
        np.concatenate([generator.render(move(latents[row : row + 1], directions[1], by))[0] for by in (-2, 0, 2)], 1)
        for row in (0, 1)
    ]
    assert np.array_equal(pixels(tmp_path / "a.png"), np.concatenate(rows))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["seeds=x"], "seeds="),
        ([f"out={__file__}/a.png"], "can't be a directory"),
        (["grid=2x2"], "no room"),
        (["resolution=64"], "4, 8, 16"),
        (["direction=nowhere:3"], "No such file"),
        (["direction=a", "strength=1,2", "out=faces"], "out=FILE.png"),
    ],
)
def test_slips_are_refused_with_advice(run_dir, arguments, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["sample", f"run={run_dir}", "device=cpu", *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
