"""ADA: what each transformation does, by its definition, and how often; how p is adapted, and what D is shown."""

import math

import pytest
import torch

from pggan.checkpoints.read import newest_checkpoint
from pggan.core.rng import StepRng
from pggan.losses.ada import ANGLES, INTERVAL, PARAMETERS, PLACES, AdaptiveP, augment, draw, resample
from pggan.run import train

CPU = torch.device("cpu")
C, S = math.cos(0.2), math.sin(0.2)
# Coordinates up to 1 are rounded by 2^-24 about ten times, which moves a sample by 8 * 2^-24 of 16 pixels each time;
# bicubic samples of values up to 1 change by less than 10 per pixel.
MOVED = 10 * 10 * 8 * 2**-24


def images_of(channels=3, side=16, count=2, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, side, side, generator=generator, dtype=dtype) * 2 - 1


def transformed(images, **values):
    """The images with these parameters, and no others."""
    numbers = torch.zeros(len(images), 2, len(PARAMETERS), dtype=torch.float64)
    for name, value in values.items():
        numbers[:, 1, PLACES[name]] = value
    return augment(images, numbers, torch.tensor(0.5))


def close(found, expected, tolerance=MOVED):
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=0)


# ---- what each does ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_images_stay_as_they_are_where_p_is_0(channels):
    images = images_of(channels)
    close(augment(images, draw(StepRng(0, 0, CPU), 2)[:, 0], torch.tensor(0.0)), images)


@pytest.mark.parametrize("side", [4, 16])
def test_flips_and_quarter_turns_move_pixels_to_pixels(side):
    images = images_of(side=side)
    close(transformed(images, flip=1), images.flip(3))
    found = [transformed(images, turn=turn) for turn in range(4)]
    turns = [images.rot90(turn, (2, 3)) for turn in range(4)]
    assert any(torch.allclose(found[1], turn, atol=MOVED) for turn in (turns[1], turns[3]))
    close(found[2], turns[2])
    close(transformed(found[1], turn=1), found[2])
    close(transformed(found[1], turn=3), images)
    # Both at once are one of the eight symmetries of a square, none of them twice.
    both = [transformed(images, turn=turn, flip=flip) for turn in range(4) for flip in (0, 1)]
    assert min((a - b).abs().max() for i, a in enumerate(both) for b in both[:i]) > 0.1


def test_shifts_are_whole_pixels_and_mirror_the_image_at_its_border():
    images = images_of()
    found = transformed(images, shift_x=1 / 8 - 0.01, shift_y=-1 / 8)  # of 16 pixels: 1.84 and -2
    rows = torch.cat([images[:, :, :2].flip(2), images[:, :, :-2]], 2)
    close(found, torch.cat([rows[..., 2:], rows[..., -2:].flip(3)], 3))
    close(transformed(images, shift_x=0.4 / 16), images)


@pytest.mark.parametrize(
    ("values", "matrix"),
    [
        ({"move_x": 0.07, "move_y": -0.03}, lambda x, y: (x + 2 * 0.07, y - 2 * 0.03)),
        ({"scale": -0.5}, lambda x, y: (x * 2**-0.5, y * 2**-0.5)),
        ({"stretch": -0.3}, lambda x, y: (x * 2**-0.3, y * 2**0.3)),
        *(({angle: 0.2}, lambda x, y: (C * x - S * y, S * x + C * y)) for angle in ANGLES),
        ({"stretch": -0.4, "angle_after": math.pi / 2}, lambda x, y: (-(2**-0.4) * y, 2**0.4 * x)),
        (  # in their order: the last is undone first
            {"angle_before": math.pi / 2, "stretch": -0.4, "scale": -0.5, "move_y": 0.04},
            lambda x, y: (-(2**-0.1) * (y + 2 * 0.04), 2**-0.9 * x),
        ),
    ],
)
def test_a_plane_is_sampled_where_the_transformation_says(values, matrix):
    """Bicubic samples lie on the plane, away from the border, to within a twentieth of a pixel.

    With PyTorch's a = -3/4, a sample at t between two pixels is off by (2a + 1) t (1 - t) (2t - 1) times the slope
    per pixel in each direction, which is at most sqrt(3) / 36 of it.
    """
    along = (2 * torch.arange(32, dtype=torch.float64) + 1) / 32 - 1
    y, x = torch.meshgrid(along, along, indexing="ij")
    images = (0.5 * x - 0.2 * y + 0.1).expand(1, 1, 32, 32)
    u, v = matrix(x, y)
    inside = (u.abs() < 0.85) & (v.abs() < 0.85)
    assert inside.float().mean() > 0.4
    found = transformed(images, **values)[0, 0]
    close(found[inside], (0.5 * u - 0.2 * v + 0.1)[inside], 1.001 * (0.5 + 0.2) / 16 * math.sqrt(3) / 36)


def test_colours_turn_around_the_grey_axis_and_move_along_it_and_away_from_it():
    """Third turns exchange the primaries; opacity keeps its values."""
    values = {"brightness": 0.3, "contrast": 0.7, "invert": 1, "hue": 2 * math.pi / 3, "saturation": -0.4}
    for channels, count in ((1, 1), (3, 3), (4, 3)):
        images = images_of(channels)
        colors, expected = images[:, :count], images.clone()
        gray = colors.mean(1, keepdim=True)
        expected[:, :count] = 2**0.7 * (2**-0.4 * (colors - gray).roll(1, 1) - (gray + 0.3))
        close(transformed(images, **values), expected)
    images = images_of()
    close(transformed(images, hue=math.pi), 2 * images.mean(1, keepdim=True) - images)
    close(transformed(images, hue=0.7).square().sum(1), images.square().sum(1))


# ---- how often ---------------------------------------------------------------------------------------------


def test_every_transformation_takes_effect_with_probability_p_and_one_of_two_rotations():
    least, _ = draw(StepRng(0, 0, CPU), 5000).flatten(0, 1).unbind(1)
    deviation = 0.5 / math.sqrt(len(least))
    for p in (0.2, 0.7):
        for name, place in PLACES.items():
            wanted = 1 - math.sqrt(1 - p) if name in ANGLES else p
            assert (least[:, place] < p).float().mean().item() == pytest.approx(wanted, abs=5 * deviation), name
        one, other = (least[:, PLACES[name]] < p for name in ANGLES)
        assert (one | other).float().mean().item() == pytest.approx(p, abs=5 * deviation)
        for pair in (("shift_x", "shift_y"), ("move_x", "move_y")):  # of one transformation
            one, other = (least[:, PLACES[name]] < p for name in pair)
            assert torch.equal(one, other)


def test_parameters_have_the_distributions_of_the_paper():
    _, values = draw(StepRng(0, 0, CPU), 5000).flatten(0, 1).unbind(1)
    count = len(values)
    bounds = dict.fromkeys(("shift_x", "shift_y"), 1 / 8) | dict.fromkeys((*ANGLES, "hue"), math.pi)
    for name, bound in bounds.items():
        column = values[:, PLACES[name]]
        assert bound * 0.99 < column.max() < bound * 1.0001
        assert column.mean().item() == pytest.approx(0, abs=5 * bound / math.sqrt(3 * count))
    deviations = {"scale": 0.2, "stretch": 0.2, "move_x": 0.125, "move_y": 0.125}
    deviations |= {"brightness": 0.2, "contrast": 0.5, "saturation": 1}
    for name, deviation in deviations.items():
        column = values[:, PLACES[name]]
        assert column.std().item() == pytest.approx(deviation, rel=5 / math.sqrt(2 * count))
    choices = {"flip": 2, "turn": 4, "invert": 2}
    for name, ways in choices.items():
        shares = torch.bincount(values[:, PLACES[name]].long()) / count
        assert shares.tolist() == pytest.approx([1 / ways] * ways, abs=2.5 / math.sqrt(count))
    assert {*bounds, *deviations, *choices} == set(PARAMETERS)


# ---- derivatives -------------------------------------------------------------------------------------------


def test_derivatives_of_resampling_of_both_orders_are_those_of_finite_differences_and_adjoint():
    matrix = torch.tensor([[[0.9, 0.3, 0.1], [-0.2, 1.1, -0.3]], [[-1.3, 0.2, 0.6], [0.1, 0.7, 0.2]]]).double()
    x, y = (images_of(2, 4, dtype=torch.float64) * factor for factor in (1, 2))
    x.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: resample(x, matrix), x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda x: resample(x, matrix).square(), x, fast_mode=True)
    found = resample(x, matrix)  # <A x, y> = <x, A' y>
    torch.testing.assert_close((found * y).sum(), (x * torch.autograd.grad(found, x, y, retain_graph=True)[0]).sum())


# ---- p -----------------------------------------------------------------------------------------------------


def follow(adaptive, *signs, batch=10):
    return [adaptive.follow(torch.tensor(sign), batch).item() for sign in signs]


def new(rampup_images=1000):
    return AdaptiveP(CPU, target=0.6, rampup_images=rampup_images)


def test_p_follows_the_signs_of_whole_intervals_by_their_images_between_0_and_the_limit():
    adaptive = new()
    assert INTERVAL == 4
    assert follow(adaptive, *[0.9] * 8) == pytest.approx([0, 0, 0, 0.04, 0.04, 0.04, 0.04, 0.08])
    assert follow(adaptive, *[0.1] * 4) == pytest.approx([0.08, 0.08, 0.08, 0.04])
    follow(adaptive, 1.0, batch=10)
    follow(adaptive, 0.5, math.nan, math.nan, batch=30)  # 0.625 in the mean, of 40 images with numbers
    assert follow(adaptive, *[math.nan] * 4)[-1] == pytest.approx(0.08)
    assert follow(new(rampup_images=60), *[-1.0] * 4, *[1.0] * 8)[3::4] == pytest.approx([0, 2 / 3, 0.85])


# ---- in training -------------------------------------------------------------------------------------------

LIVELY = ["augmentation=ada", "augmentation.rampup_images=200", "loss=logistic", "loss.gamma=0"]
LIVELY += ["schedule.learning_rate_d=0.1"]


@pytest.mark.slow
def test_a_resumed_run_with_an_adapted_p_equals_the_uninterrupted_one(tiny_config, tmp_path):
    whole, halves = tmp_path / "whole", tmp_path / "halves"
    train.run(tiny_config(f"run_dir={whole}", *LIVELY))
    train.run(tiny_config(f"run_dir={halves}", *LIVELY, "schedule.total_images=104"))  # in the middle of an interval
    saved = newest_checkpoint(halves)[0].load("augmentation")
    assert (int(saved["updates"]), int(saved["images"])) == (1, 8)
    assert 0 < saved["p"] <= 0.85
    train.run(tiny_config(f"run_dir={halves}", *LIVELY))
    one, other = (newest_checkpoint(path)[0].header["state_sha256"] for path in (whole, halves))
    assert one == other
