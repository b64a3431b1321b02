"""Latents of seeds, in files, and on paths: ends, speeds, corners, seams; and directions."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pggan.core.errors import UserError
from pggan.networks.networks import Generator, initialize
from pggan.sampling.generate import seed_latents
from pggan.sampling.latents import (
    SMOOTHNESS,
    closed_spline,
    load_vectors,
    parse_seeds,
    path_through,
    principal_directions,
    random_walk,
    slerp,
    through,
)
from tests.definitions import variant

SIZE = 64


def keys(count, size=SIZE):
    return seed_latents(list(range(count)), size)


def turns_of(path):
    """Angles in radians between neighbours of `path` [F, Z], in float64."""
    directions = torch.nn.functional.normalize(path.double())
    # 2 * asin(|a - b| / 2) stays exact for small angles, where acos does not.
    return 2 * torch.asin(directions.diff(dim=0).norm(dim=1) / 2)


def test_seeds_are_numbers_ranges_and_lists():
    assert parse_seeds(5) == [5]
    assert parse_seeds("1, 5,9-11") == parse_seeds([1, "5", "9-11"]) == [1, 5, 9, 10, 11]
    for wrong in ("", "x", "-1", "9-5", "1,9-5", "0-1000000", [], [1.5]):
        with pytest.raises(UserError, match="seeds="):
            parse_seeds(wrong)


def test_latents_of_seeds_are_standard_normal_unrelated_and_the_same_in_any_company():
    latents = keys(200, 512)
    assert torch.equal(seed_latents([3, 7, 100, 7], 512), latents[[3, 7, 100, 7]])
    assert abs(latents.double().mean()) < 0.02
    assert abs(latents.double().var() - 1) < 0.02
    assert np.abs(np.corrcoef(latents[:20].numpy())[~np.eye(20, dtype=bool)]).max() < 5 / math.sqrt(512)


@pytest.mark.parametrize(
    "tensors",
    [
        {"latents": torch.zeros(2, SIZE)},
        {"latents": torch.full((1, SIZE), math.nan)},
        {"latents": torch.ones(1, SIZE - 1)},
        {"weights": torch.ones(1, SIZE)},
    ],
)
def test_files_that_hold_no_latents_of_this_generator_are_refused(tensors, tmp_path):
    save_file(tensors, tmp_path / "a.safetensors")
    with pytest.raises(UserError, match=r"a\.safetensors has no valid latents"):
        load_vectors("latents", tmp_path / "a.safetensors", SIZE)


def test_slerp_turns_by_equal_angles_in_the_plane_of_its_latents_and_changes_the_length_evenly():
    given, weights = torch.stack([keys(2)[0] * 3, keys(2)[1] * 5]), torch.linspace(0, 1, 11)
    found = slerp(given[:1], given[1:], weights[:, None])
    torch.testing.assert_close(turns_of(found), turns_of(given).expand(10) / 10, rtol=1e-4, atol=0)
    plane = torch.linalg.qr(given.T)[0]
    torch.testing.assert_close(found @ plane @ plane.T, found, rtol=0, atol=1e-4)
    torch.testing.assert_close(found.norm(dim=1), torch.lerp(*given.norm(dim=1), weights))


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_slerp_between_identical_or_opposite_latents_is_straight(scale):
    start = keys(20).double()  # rounding differs from latent to latent
    for weight in (0.0, 0.4, 1.0):
        found = slerp(start, start * scale, torch.full((20, 1), weight, dtype=torch.float64))
        torch.testing.assert_close(found, torch.lerp(start, start * scale, weight), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("between", [slerp, torch.lerp])
def test_an_open_path_passes_through_every_key_and_shows_both_ends_exactly(between):
    given = keys(5)
    path = through(given, between, torch.linspace(0, 1, 13, dtype=torch.float64))
    torch.testing.assert_close(path[::3], given, atol=1e-6, rtol=1e-6)
    assert torch.equal(path[[0, -1]], given[[0, -1]])


def test_a_closed_path_passes_through_every_key_without_a_corner_and_is_the_same_path_backwards():
    """The direction of the movement just before and just after every key is the same, and so is the speed.

    Over a distance h the tangent turns by the curvature times h: doubling h doubles the difference.
    """
    path, h = partial(closed_spline, keys(7)), 1e-4
    at = torch.arange(7, dtype=torch.float64) / 7
    film = path_through(keys(7), "loop", 14)  # which does not show its first frame again at its end
    torch.testing.assert_close(film[::2], keys(7), atol=1e-6, rtol=1e-6)
    arriving, leaving = (path(at) - path((at - h) % 1)).double(), (path(at + h) - path(at)).double()
    cosine = torch.nn.functional.cosine_similarity(arriving, leaving)
    assert cosine.min() > 0.999  # a path of great circles turns by 60 degrees there: 0.5
    assert (arriving.norm(dim=1) / leaving.norm(dim=1) - 1).abs().max() < 0.02
    back = partial(closed_spline, keys(7)[[0, 6, 5, 4, 3, 2, 1]])
    at = torch.arange(20, dtype=torch.float64) / 20
    torch.testing.assert_close(path(at), back((1 - at) % 1), atol=1e-5, rtol=1e-5)


def test_constant_speed_is_constant_by_the_distance_asked_for():
    """Of a line whose picture changes with the square of its position, the frames are those of the root."""
    ends = torch.tensor([[0.0], [1.0]])
    found = path_through(ends, "lerp", 11, lambda latents: latents[:, 0].square().diff())
    torch.testing.assert_close(found[:, 0], torch.linspace(0, 1, 11).sqrt(), atol=1e-4, rtol=1e-4)
    assert len(path_through(ends, "lerp", 11, lambda latents: torch.zeros(len(latents) - 1)).unique()) == 1


def test_a_walk_is_smooth_by_its_gaussian_in_frames_has_no_seam_and_depends_on_the_number_of_frames():
    # White noise smoothed with a Gaussian of deviation s has autocorrelation exp(-lag^2 / (4 s^2)).
    path = random_walk(0, 20_000, 320).double().numpy()
    for lag in range(0, 45, 5):
        found = (path * np.roll(path, -lag, 0)).mean()
        assert found == pytest.approx(math.exp(-(lag**2) / (4 * SMOOTHNESS**2)), abs=0.02)
    lengths = random_walk(0, 4, 320).square().mean(1)
    assert lengths.mean() == pytest.approx(1, abs=1e-5)  # as a whole, not of each frame
    assert lengths.max() > 1.5 * lengths.min()
    short, long = (random_walk(0, 512, count)[160] for count in (320, 640))
    assert abs(torch.cosine_similarity(short, long, 0)) < 0.3


def test_the_principal_directions_show_what_changes_features_most():
    """Of a generator whose first layer amplifies latent 3 by far the most, and then latent 5."""
    network = Generator(variant(resolution=4, latent_size=8, fmap_base=64, fmap_max=16))
    initialize(network, 0, "g")
    with torch.no_grad():
        network.stem.dense.weight[:, 3] *= 30
        network.stem.dense.weight[:, 5] *= 10
    directions = principal_directions(network.requires_grad_(False), 2)
    assert directions.abs().argmax(1).tolist() == [3, 5]
    assert torch.allclose(directions.norm(dim=1), torch.ones(2))
