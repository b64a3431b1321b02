"""Projection, in Python and as a command."""

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.sampling.latents import load_vectors, on_sphere
from pggan.sampling.projection import laplacian_distance, psnr, read_target

SHORT = ["steps=3", "device=cpu"]


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_a_difference_counts_at_the_level_that_has_it():
    black = torch.zeros(3, 1, 4, 4)
    brighter, stripes, left = torch.full((1, 4, 4), 0.5), torch.zeros(1, 4, 4), torch.zeros(1, 4, 4)
    stripes[:, :, ::2], stripes[:, :, 1::2] = 0.5, -0.5
    left[:, :, :2], left[:, :, 2:] = 0.5, -0.5
    assert laplacian_distance(torch.stack([brighter, stripes, left]), black).tolist() == [0.5, 0.5, 0.5]
    a, b = noise(2, 3, 8, 8).requires_grad_(), noise(2, 3, 8, 8).roll(1, 0)
    assert torch.equal(laplacian_distance(a, b)[1], laplacian_distance(a[1:], b[1:])[0])
    torch.autograd.gradcheck(lambda images: laplacian_distance(images, b), a, fast_mode=True)


def test_a_generated_image_is_found_again(generator):
    target = generator.sample([1500])[0]  # none of the candidates
    found = generator.project(target, steps=100)
    assert found.psnr >= 30
    assert found.psnr == psnr(found.image, np.asarray(target))
    assert np.array_equal(generator.render(found.latent[None])[0], found.image)
    assert torch.allclose(found.latent[None], on_sphere(found.latent[None]))


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
    assert load_vectors("latents", out / "latents.safetensors", 8).shape == (2, 8)
    picture = np.asarray(Image.open(out / "projection.png"))
    target = read_target(pictures[1], 16, 3)
    zoom = picture.shape[1] // 64  # of two pairs side by side
    assert np.array_equal(picture[: 16 * zoom : zoom, 32 * zoom : 48 * zoom : zoom], target)
    sheet = tmp_path / "sheet.png"
    arguments = [f"latents={out / 'latents.safetensors'}", "zoom=1", f"out={sheet}", "device=cpu"]
    assert main(["sample", f"run={run_dir}", *arguments]) == 0
    assert np.asarray(Image.open(sheet)).shape == (16, 32, 3)


def test_grey_pictures_are_taken():
    grey = np.arange(256, dtype=np.uint8).reshape(16, 16)
    assert np.array_equal(read_target(Image.fromarray(grey), 16, 3), np.repeat(grey[:, :, None], 3, 2))
    assert np.array_equal(read_target(Image.fromarray(grey), 16, 1), grey[:, :, None])


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["image=missing.png"], "No such file"),
        (["image=text.png"], "not a PNG, JPEG or WebP"),
        (["image=small.png"], "smaller than 16x16"),
        (["image=large.png", "resolution=64"], "4, 8, 16"),
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
