"""Directions of latents."""

import numpy as np
import pytest
import torch
from PIL import Image

from pggan.cli.main import main
from pggan.core.architecture import Architecture, Resampling
from pggan.core.errors import UserError
from pggan.networks.networks import Generator, initialize
from pggan.sampling.latents.directions import (
    direction_between,
    directions_of_activations,
    directions_of_weights,
    load_direction,
    move,
    unit,
)
from pggan.sampling.latents.latents import save_latents, seed_latents

SIZE = 8


@pytest.fixture
def network() -> Generator:
    """An untrained generator whose first layer amplifies latent 3 by far the most, and then latent 5."""
    architecture = Architecture(
        resolution=4,
        channels=3,
        num_classes=0,
        latent_size=SIZE,
        fmap_base=64,
        fmap_decay=1.0,
        fmap_max=16,
        stddev_group=4,
        resampling=Resampling.fused,
    )
    network = Generator(architecture)
    initialize(network, 0, "g")
    with torch.no_grad():
        network.stem.dense.weight[:, 3] *= 30
        network.stem.dense.weight[:, 5] *= 10
    return network.requires_grad_(False)


def test_the_weights_show_what_the_first_layer_amplifies(network):
    directions = directions_of_weights(network, 3)
    assert torch.allclose(directions @ directions.T, torch.eye(3), atol=1e-6)  # float32 of a float64 result
    gains = (directions @ network.stem.dense.weight.T).norm(dim=1)
    values = torch.linalg.svdvals(network.stem.dense.weight)[:3]
    assert torch.allclose(gains, values, rtol=1e-5)
    assert directions.abs().argmax(1)[:2].tolist() == [3, 5]


def test_the_activations_show_what_changes_features_most(network):
    directions = directions_of_activations(network, 2, None)
    assert directions.shape == (2, SIZE)
    assert int(directions[0].abs().argmax()) == 3
    assert torch.allclose(directions.norm(dim=1), torch.ones(2))


def test_two_sets_show_what_they_differ_in():
    latents = seed_latents(list(range(2000)), SIZE)
    found = direction_between(latents[latents[:, 2] < 0], latents[latents[:, 2] > 0])
    # The mean of the other 7 numbers in a set of about 1000 has a deviation of 1/32, beside a shift of about 1.6.
    assert float(found[0, 2]) > 0.99
    with pytest.raises(UserError, match="same mean"):
        direction_between(latents, latents)


def test_strengths_are_distances_along_the_direction():
    latents, direction = seed_latents([1, 2], SIZE) * 7, unit(torch.ones(1, SIZE))[0]
    moved = move(latents, direction, 2.5)
    assert torch.allclose(moved - move(latents, direction, 0), 2.5 * direction.expand(2, -1), atol=1e-5)
    assert torch.allclose(move(latents, direction, 0).norm(dim=1), torch.full((2,), SIZE**0.5))


@pytest.mark.parametrize("method", ["weights", "activations", "sets"])
def test_the_command_writes_directions_and_a_sheet_of_them(run_dir, generator, tmp_path, method):
    out, sets = tmp_path / "found" / "d.safetensors", tmp_path / "negative.safetensors"
    save_latents(seed_latents([5, 6], SIZE), sets, ["a test"])
    arguments = ["positive=0-4", f"negative={sets}"] if method == "sets" else ["count=2"]
    command = ["directions", f"run={run_dir}", f"method={method}", "seeds=7,8", f"out={out}", "device=cpu"]
    assert main([*command, *arguments]) == 0
    count = 1 if method == "sets" else 2
    direction = load_direction(f"{out}:{count - 1}", SIZE)
    assert float(direction.norm()) == pytest.approx(1)
    picture = np.asarray(Image.open(out.with_suffix(".png")))
    side = picture.shape[1] // 7
    row = picture[-(side + 16) : -16 : side // 16, :: side // 16]
    expected = generator.render(move(generator.latents(8), direction, 3.0))[0]
    assert np.array_equal(row[:, -16:], expected)


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["method=sets", "positive=1"], "negative="),
        (["positive=1", "negative=2"], "method=sets"),
        (["method=sets", "positive=1", "negative=no.safetensors"], "negative=no.safetensors"),
        (["method=sets", "positive=many", "negative=1"], "positive=many can't be read"),
        (["method=sets", f"positive={__file__}", "negative=1"], f"pggan project image={__file__}"),
        (["method=magic"], "magic"),
        (["out=d.png"], ".safetensors"),
    ],
)
def test_slips_are_refused_with_advice(run_dir, arguments, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["directions", f"run={run_dir}", "device=cpu", *arguments]) == 2
    assert hint in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
