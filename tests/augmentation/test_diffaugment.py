"""DiffAugment: each transformation by its definition."""

import pytest
import torch

from pggan.augmentation.diffaugment import DiffAugment, change_colors, cut_out, translate
from pggan.core.errors import UserError
from pggan.core.rng import StepRng

CPU = torch.device("cpu")
ROUNDING = {"atol": 2e-6, "rtol": 0}  # of a few operations in float32 on numbers up to 4, whose rounding is 2.4e-7


def images_of(channels=3, side=8, count=2):
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0)) * 2 - 1


def of_all(*numbers, count=2):
    return torch.tensor([numbers]).expand(count, -1)


def test_colours_are_those_of_the_formulas():
    images = images_of()
    torch.testing.assert_close(change_colors(images, of_all(0.5, 0.5, 0.5)), images, **ROUNDING)
    torch.testing.assert_close(change_colors(images, of_all(0.9, 0.5, 0.5)), images + 0.4, **ROUNDING)
    gray = images.mean(1, keepdim=True)
    torch.testing.assert_close(change_colors(images, of_all(0.5, 0.2, 0.5)), gray + 0.4 * (images - gray), **ROUNDING)
    mean = images.mean((1, 2, 3), keepdim=True)
    torch.testing.assert_close(change_colors(images, of_all(0.5, 0.5, 0.9)), mean + 1.4 * (images - mean), **ROUNDING)


@pytest.mark.parametrize(("channels", "colors"), [(1, 1), (2, 1), (3, 3), (4, 3), (5, 0)])
def test_channels_that_are_no_colours_stay_as_they_are(channels, colors):
    images = images_of(channels)
    found = change_colors(images, of_all(0.9, 0.1, 0.9))
    assert torch.equal(found[:, colors:], images[:, colors:])
    assert not colors or not torch.allclose(found[:, :colors], images[:, :colors])


@pytest.mark.parametrize(("side", "most"), [(4, 1), (8, 1), (16, 2), (64, 8)])
def test_shifts_are_whole_pixels_up_to_an_eighth_of_the_side_with_zeros_behind(side, most):
    images = images_of(1, side, count=1) + 2  # nothing is 0 before
    seen = set()
    for number in torch.linspace(0, 0.999, 200):
        found = translate(images, torch.stack([number, torch.tensor(0.5)])[None])  # the other: no shift
        empty = (found == 0).all(3)[0, 0]
        shift = int(empty.sum()) * (1 if empty[-1] else -1)
        rows = slice(shift, None) if shift >= 0 else slice(None, shift)
        kept = found[:, :, : side - shift] if shift >= 0 else found[:, :, -shift:]
        assert torch.equal(kept, images[:, :, rows])
        seen.add(shift)
    assert seen == set(range(-most, most + 1))
    turned = translate(images.transpose(2, 3), torch.tensor([[0.5, 0.0]])).transpose(2, 3)
    assert torch.equal(turned, translate(images, torch.tensor([[0.0, 0.5]])))


def test_a_square_of_half_the_side_is_cut_out_anywhere():
    ones, starts = torch.ones(1, 2, 8, 8), set()
    for number in torch.linspace(0, 0.999, 100):
        found = cut_out(ones, torch.stack([number, torch.tensor(0.5)])[None])
        hole = (found[0, 0] == 0).nonzero()
        first, last = hole.amin(0).tolist(), hole.amax(0).tolist()
        assert len(hole) == (last[0] - first[0] + 1) * 4  # a rectangle, as wide as half the side
        assert (first[1], last[1]) == (2, 5)
        assert torch.equal(found[0, 0], found[0, 1])
        starts.add((first[0], last[0]))
    assert starts == {(max(start, 0), min(start + 3, 7)) for start in range(-2, 7)}


def test_all_images_are_transformed_each_in_its_own_way_by_the_chosen_groups():
    whole = DiffAugment(colors=True, translation=True, cutout=True)
    numbers = whole.draw(StepRng(0, 0, CPU), 16)
    assert numbers.shape[:2] == (16, 4)
    assert len(numbers.unique()) > 0.999 * numbers.numel()
    images = images_of(side=16, count=1).expand(16, -1, -1, -1)
    assert len({tuple(image.flatten().tolist()) for image in whole.apply(images, numbers[:, 0], None)}) == 16
    shifts = DiffAugment(colors=False, translation=True, cutout=False)
    assert torch.equal(shifts.apply(images, numbers[:, 0], None), translate(images, numbers[:, 0, 3:5]))


@pytest.mark.parametrize("group", ["colors", "translation", "cutout"])
def test_derivatives_of_both_orders_are_those_of_finite_differences(group):
    one = DiffAugment(**{name: name == group for name in ("colors", "translation", "cutout")})
    numbers = one.draw(StepRng(3, 0, CPU), 2)[:, 0]
    images = images_of(side=4).double().requires_grad_()
    fast = {"fast_mode": True}
    assert torch.autograd.gradcheck(lambda x: one.apply(x, numbers, None), images, check_forward_ad=True, **fast)
    assert torch.autograd.gradgradcheck(lambda x: one.apply(x, numbers, None).square(), images, **fast)


def test_at_least_one_group_is_needed():
    with pytest.raises(UserError, match=r"augmentation\.colors"):
        DiffAugment(colors=False, translation=False, cutout=False)
