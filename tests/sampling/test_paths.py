"""Paths between latents: ends, speeds, corners, seams."""

import itertools
import math

import numpy as np
import pytest
import torch

from pggan.sampling.latents import paths
from pggan.sampling.latents.latents import seed_latents
from pggan.sampling.latents.paths import (
    at_constant_speed,
    closed_spline,
    frame_positions,
    lerp,
    loop,
    random_walk,
    slerp,
    through,
)

SIZE = 64


def keys(count, size=SIZE):
    return seed_latents(list(range(count)), size)


def angles(path):
    """Angles in radians between neighbours of `path` [F, Z], in float64."""
    unit = path.double().numpy()
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    # 2 * asin(|a - b| / 2) stays exact for small angles, where acos does not.
    return 2 * np.arcsin(np.clip(np.linalg.norm(np.diff(unit, axis=0), axis=1) / 2, 0, 1))


def steps(path, closed=False):
    moves = path.roll(-1, 0) - path if closed else path[1:] - path[:-1]
    return moves.norm(dim=1)


# ---- lerp and slerp --------------------------------------------------------------------------------------


def test_lerp_is_the_straight_line():
    start, end = torch.tensor([0.0, 2.0]), torch.tensor([4.0, -2.0])
    found = lerp(start, end, torch.tensor([0.0, 0.25, 0.5, 1.0]))
    assert torch.equal(found, torch.tensor([[0.0, 2.0], [1.0, 1.0], [2.0, 0.0], [4.0, -2.0]]))


def test_slerp_from_x_to_y_goes_along_the_quarter_circle():
    found = slerp(torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0]), torch.tensor([0.0, 1 / 3, 0.5, 2 / 3, 1.0]))
    root = math.sqrt(3) / 2
    expected = [[1, 0], [root, 0.5], [math.sqrt(0.5), math.sqrt(0.5)], [0.5, root], [0, 1]]
    torch.testing.assert_close(found, torch.tensor(expected), atol=1e-6, rtol=0)


def test_slerp_starts_and_ends_at_its_latents():
    start, end = keys(2)
    found = slerp(start, end, torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(found, torch.stack([start, end]), atol=2e-6, rtol=2e-6)


def test_slerp_turns_by_equal_angles():
    start, end = keys(2)
    turns = angles(slerp(start, end, torch.linspace(0, 1, 11)))
    whole = angles(torch.stack([start, end]))[0]
    np.testing.assert_allclose(turns, whole / 10, rtol=1e-4)


def test_slerp_stays_in_the_plane_of_its_latents():
    start, end = keys(2)
    found = slerp(start, end, torch.linspace(0, 1, 7)).double().numpy()
    plane = np.linalg.qr(torch.stack([start, end], 1).double().numpy())[0]
    np.testing.assert_allclose(found @ plane @ plane.T, found, atol=1e-5)


def test_slerp_changes_the_length_evenly():
    start, end = torch.tensor([3.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 5.0])
    lengths = slerp(start, end, torch.linspace(0, 1, 5)).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([3.0, 3.5, 4.0, 4.5, 5.0]), atol=1e-5, rtol=0)


def test_slerp_in_the_middle_is_not_shorter_than_its_ends_as_lerp_is():
    start, end = keys(2)
    middle = torch.tensor([0.5])
    assert slerp(start, end, middle).norm() > 0.99 * min(start.norm(), end.norm())
    assert lerp(start, end, middle).norm() < 0.9 * min(start.norm(), end.norm())


@pytest.mark.parametrize("scale", [1.0, 2.0, -1.0, -2.0])
def test_slerp_between_identical_or_opposite_latents_is_finite(scale):
    for seed in range(20):  # rounding differs from latent to latent
        start = seed_latents([seed], SIZE)[0]
        found = slerp(start, start * scale, torch.linspace(0, 1, 9))
        assert torch.isfinite(found).all()
        torch.testing.assert_close(found[0], start, atol=1e-3, rtol=1e-3)
        torch.testing.assert_close(found[-1], start * scale, atol=1e-3, rtol=1e-3)
        assert found.norm(dim=1).max() < 1.01 * max(1, abs(scale)) * start.norm()


def test_slerp_between_almost_identical_latents_goes_straight():
    start = seed_latents([0], SIZE)[0]
    end = start + 1e-5 * seed_latents([1], SIZE)[0]
    weights = torch.linspace(0, 1, 5)
    torch.testing.assert_close(slerp(start, end, weights), lerp(start, end, weights), atol=1e-5, rtol=0)


# ---- open paths ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("between", [slerp, lerp])
@pytest.mark.parametrize(("count", "per_leg"), [(2, 7), (4, 5), (5, 3), (3, 1), (8, 13)])
def test_an_open_path_passes_through_every_key(between, count, per_leg):
    given = keys(count)
    path = through(given, between)(frame_positions((count - 1) * per_leg + 1))
    torch.testing.assert_close(path[::per_leg], given, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("between", [slerp, lerp])
@pytest.mark.parametrize("frames", [2, 5, 10, 48, 61, 100])
def test_an_open_path_shows_both_ends_exactly(between, frames):
    given = keys(4)
    path = through(given, between)(frame_positions(frames))
    assert path.shape == (frames, SIZE)
    assert torch.equal(path[[0, -1]], given[[0, -1]])


@pytest.mark.parametrize("between", [slerp, lerp])
def test_no_frame_of_a_path_is_shown_twice(between):
    for path in (through(keys(4), between)(frame_positions(37)), loop(keys(4))(frame_positions(37, closed=True))):
        distances = torch.cdist(path.double(), path.double()) + torch.eye(37) * 1e9
        assert distances.min() > 0.1


def test_a_lerp_path_moves_evenly_along_each_leg():
    found = through(torch.tensor([[0.0], [1.0], [3.0]]), lerp)(frame_positions(9))[:, 0]
    torch.testing.assert_close(found, torch.tensor([0, 0.25, 0.5, 0.75, 1, 1.5, 2, 2.5, 3]), atol=1e-6, rtol=0)


def test_a_path_can_be_drawn_in_parts():
    positions = frame_positions(30)
    path = through(keys(4), slerp)
    assert torch.equal(path(positions), torch.cat([path(positions[:7]), path(positions[7:])]))
    around = loop(keys(4))
    assert torch.equal(around(positions), torch.cat([around(part) for part in positions.split(4)]))


# ---- frames ----------------------------------------------------------------------------------------------


def test_frames_of_an_open_path_show_both_ends_and_those_of_a_closed_one_one_of_them():
    assert frame_positions(5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert frame_positions(4, closed=True).tolist() == [0, 0.25, 0.5, 0.75]
    assert frame_positions(1).tolist() == [0]


def test_held_frames_stand_still_at_every_key():
    found = frame_positions(11, segments=2, hold=2)
    assert found.tolist() == [0, 0, 0, 0.25, 0.5, 0.5, 0.5, 0.75, 1, 1, 1]
    around = frame_positions(8, segments=2, hold=2, closed=True)
    assert around.tolist() == [0, 0, 0, 0.25, 0.5, 0.5, 0.5, 0.75]


def test_eased_frames_start_and_stop_gently_at_every_key():
    found = frame_positions(201, segments=2, ease=True).numpy()
    speed = np.diff(found) * 200  # 1 without easing
    assert found[[0, 100, 200]].tolist() == [0, 0.5, 1]
    assert speed[[0, 99, 100, 199]].max() < 0.05
    assert speed.max() == pytest.approx(1.5, abs=0.01)  # of smoothstep, in the middle


# ---- loops -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 3, 4, 7])
def test_a_closed_path_passes_through_every_key_and_closes(count):
    given = keys(count)
    path = closed_spline(given)
    found = path(torch.arange(count + 1, dtype=torch.float64) / count)
    torch.testing.assert_close(found, torch.cat([given, given[:1]]), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("count", [3, 4, 7])
def test_a_closed_path_has_no_corner(count):
    """The direction of the movement just before and just after every key is the same, and so is the speed.

    Over a distance h the tangent turns by the curvature times h: doubling h doubles the difference.
    """
    path, h = closed_spline(keys(count)), 1e-4
    at = torch.arange(count, dtype=torch.float64) / count
    arriving, leaving = (path(at) - path((at - h) % 1)).double(), (path(at + h) - path(at)).double()
    cosine = torch.nn.functional.cosine_similarity(arriving, leaving)
    assert cosine.min() > 0.999  # a path of great circles turns by 60 degrees there: 0.5
    assert (arriving.norm(dim=1) / leaving.norm(dim=1) - 1).abs().max() < 0.02


@pytest.mark.parametrize("frames", [24, 31, 240])
def test_a_loop_turns_by_the_same_angle_everywhere_and_closes(frames):
    path = loop(keys(5))
    torch.testing.assert_close(*path(torch.tensor([0.0, 1.0])), atol=1e-6, rtol=1e-6)
    around = path(frame_positions(frames, closed=True))
    turns = angles(torch.cat([around, around[:1]]))
    # Chords of a curve differ from its arcs by their square; the path itself is measured at 320 points.
    np.testing.assert_allclose(turns, turns.mean(), rtol=max(0.02, 3 * turns.mean() ** 2))


def test_a_loop_around_one_key_stays_there():
    path = loop(keys(1))(frame_positions(5, closed=True))
    torch.testing.assert_close(path, keys(1).expand(5, -1), atol=1e-6, rtol=1e-6)


def test_constant_speed_is_that_of_the_distance_asked_for():
    """Of a line whose picture changes with the square of its position, the frames are those of the root."""
    line = through(torch.tensor([[0.0], [1.0]]), lerp)
    path = at_constant_speed(line, lambda latents: latents[:, 0].square().diff(), 1000)
    wanted = torch.linspace(0, 1, 11)
    torch.testing.assert_close(path(wanted)[:, 0], wanted.sqrt(), atol=1e-4, rtol=1e-4)
    still = at_constant_speed(line, lambda latents: torch.zeros(len(latents) - 1), 10)
    assert torch.equal(still(wanted), line(wanted))


def test_a_closed_path_of_straight_lines_meets_its_points_and_wraps_around():
    path = paths.around(torch.tensor([[0.0], [2.0], [3.0]]))
    found = path(torch.arange(7, dtype=torch.float64) / 6)[:, 0]
    torch.testing.assert_close(found, torch.tensor([0, 1, 2, 2.5, 3, 1.5, 0]), atol=1e-6, rtol=0)


def test_constant_speed_in_parts_stays_with_their_borders():
    """Of two segments, one of them ten times as long: each takes half of the time, at a speed of its own."""
    line = through(torch.tensor([[0.0], [1.0], [11.0]]), lerp)
    path = at_constant_speed(line, lambda latents: latents[:, 0].square().diff(), 1000, 2)
    found = path(torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))[:, 0]
    wanted = torch.tensor([0.0, 0.5, 1.0, (1 + 121) / 2, 121.0]).sqrt()
    wanted[1] = math.sqrt(0.5)
    torch.testing.assert_close(found, wanted, atol=1e-3, rtol=1e-3)
    around = loop(keys(4), 4)
    torch.testing.assert_close(around(torch.arange(4, dtype=torch.float64) / 4), keys(4), atol=1e-6, rtol=1e-6)


def test_angles_are_exact_where_they_are_small():
    turned = torch.tensor([[1.0, 0.0], [1.0, 1e-5]])
    assert paths.angles(turned).item() == pytest.approx(1e-5, rel=1e-5)


# ---- walk ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("frames", "smoothness"), [(60, 5.0), (61, 5.0), (120, 1.0), (33, 8.0)])
def test_a_walk_wraps_around_without_a_seam(frames, smoothness):
    moves = steps(random_walk(0, 256, frames, smoothness), closed=True)
    assert moves[-1] < 1.5 * moves[:-1].max()
    assert moves[-1] > 0.5 * moves[:-1].min()


@pytest.mark.parametrize(("frames", "smoothness"), [(1, 3.0), (2, 0.0), (60, 5.0), (61, 30.0), (50, 1000.0)])
def test_a_walk_has_unit_mean_square(frames, smoothness):
    path = random_walk(1, 128, frames, smoothness)
    assert path.shape == (frames, 128)
    assert path.double().square().mean().item() == pytest.approx(1, abs=1e-5)


def test_a_walk_is_scaled_as_a_whole_and_its_frames_keep_their_own_lengths():
    """Scaled frame by frame, the smoothed noise would be bent: it would have more than its slow waves."""
    path = random_walk(1, 16, 60, 4.0).double()
    assert path.square().mean(1).std() > 0.1
    waves = torch.fft.rfft(path, dim=0).abs()
    # A Gaussian of 4 frames leaves exp(-2 (pi 4 16/60)^2) = 2e-10 of the waves from the sixteenth on: only rounding.
    assert waves[16:].max() < 1e-5 * waves.max()


@pytest.mark.parametrize("frames", [30, 60])
def test_another_number_of_frames_is_another_walk_and_not_the_same_one_cut_off(frames):
    """A choice: a walk closes, so a longer one can't begin with a shorter one; its noise is drawn anew."""
    path, longer = random_walk(4, 512, frames, 0.0), random_walk(4, 512, frames + 1, 0.0)
    correlation = np.corrcoef(path.flatten(), longer[:frames].flatten())[0, 1]
    assert abs(correlation) < 5 / math.sqrt(512 * frames)  # five standard deviations of unrelated noise


def test_a_walk_is_a_function_of_its_seed():
    assert torch.equal(random_walk(4, 32, 30, 3.0), random_walk(4, 32, 30, 3.0))
    correlation = np.corrcoef(random_walk(4, 32, 30, 1.0).flatten(), random_walk(5, 32, 30, 1.0).flatten())[0, 1]
    assert abs(correlation) < 0.3


def test_a_smoother_walk_moves_less_per_frame():
    distances = [
        steps(random_walk(0, 64, 90, s), closed=True).mean().item() for s in (0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
    ]
    assert all(later < 0.9 * earlier for earlier, later in itertools.pairwise(distances))


def test_a_walk_without_smoothing_is_white_noise_over_time():
    path = random_walk(0, 4000, 16, 0.0).double().numpy()
    correlation = np.corrcoef(path)
    assert np.abs(correlation[~np.eye(16, dtype=bool)]).max() < 6 / math.sqrt(4000)


def test_smoothness_is_the_standard_deviation_of_the_gaussian_in_frames():
    # White noise smoothed with a Gaussian of deviation s has autocorrelation exp(-lag^2 / (4 s^2)).
    smoothness, frames = 3.0, 64
    path = random_walk(0, 20_000, frames, smoothness).double().numpy()
    for lag in range(9):
        found = (path * np.roll(path, -lag, 0)).mean()
        assert found == pytest.approx(math.exp(-(lag**2) / (4 * smoothness**2)), abs=0.02)
