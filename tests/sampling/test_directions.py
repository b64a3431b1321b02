"""Directions of latents."""

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.networks.networks import Generator, initialize
from pggan.sampling.generate import seed_latents
from pggan.sampling.latents import load_direction, move, principal_directions, unit
from tests.definitions import variant

SIZE = 8


@pytest.fixture
def network() -> Generator:
    """An untrained generator whose first layer amplifies latent 3 by far the most, and then latent 5."""
    network = Generator(variant(resolution=4, latent_size=SIZE, fmap_base=64, fmap_max=16))
    initialize(network, 0, "g")
    with torch.no_grad():
        network.stem.dense.weight[:, 3] *= 30
        network.stem.dense.weight[:, 5] *= 10
    return network.requires_grad_(False)


def test_the_principal_directions_show_what_changes_features_most(network):
    directions = principal_directions(network, 2)
    assert directions.shape == (2, SIZE)
    assert directions.abs().argmax(1).tolist() == [3, 5]
    assert torch.allclose(directions.norm(dim=1), torch.ones(2))


def test_strengths_are_distances_along_the_direction():
    latents, direction = seed_latents([1, 2], SIZE) * 7, unit(torch.ones(1, SIZE))[0]
    moved = move(latents, direction, 2.5)
    assert torch.allclose(moved - move(latents, direction, 0), 2.5 * direction.expand(2, -1), atol=1e-5)
    assert torch.allclose(move(latents, direction, 0).norm(dim=1), torch.full((2,), SIZE**0.5))


def test_the_command_writes_directions_and_a_sheet_of_them(run_dir, generator, tmp_path):
    out = tmp_path / "found" / "d.safetensors"
    command = ["directions", f"run={run_dir}", "seeds=7,8", "count=2", f"out={out}", "device=cpu"]
    assert main(command) == 0
    direction = load_direction(f"{out}:1", SIZE)
    assert float(direction.norm()) == pytest.approx(1)
    picture = np.asarray(Image.open(out.with_suffix(".png")))
    side = picture.shape[1] // 7
    row = picture[-(side + 16) : -16 : side // 16, :: side // 16]  # the last of direction 1: seed 8
    assert np.array_equal(row[:, -16:], generator.render(move(generator.latents(8), direction, 3.0))[0])


@pytest.mark.parametrize(("argument", "hint"), [("method=weights", "Leave it out"), ("out=d.png", ".safetensors")])
def test_slips_are_refused_with_advice(run_dir, argument, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["directions", f"run={run_dir}", "device=cpu", argument]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
