"""Equalised layers and the minibatch standard deviation, against their definitions."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pggan.core.architecture import Rescaling
from pggan.networks.layers import EqualizedConv, EqualizedLinear, PointwiseConv, minibatch_stddev
from pggan.networks.networks import initialize
from tests.networks.naive import naive_conv, naive_stddev, naive_up, normal


def with_stddev(features, group, sub_batches=1):
    """The features and, as the last map, their minibatch standard deviation."""
    values = minibatch_stddev(features, group, sub_batches)
    return torch.cat([features, values[:, None, None, None].expand(-1, 1, *features.shape[2:])], 1)


@pytest.mark.parametrize(
    ("layer", "shape", "gain"),
    [
        (lambda: EqualizedLinear(400, 300), (200, 300), 2),
        (lambda: EqualizedLinear(400, 300, gain=1.0), (200, 300), 1),
        (lambda: EqualizedConv(64, 48, 3, 3), (8, 48, 16, 16), 2),
        (lambda: PointwiseConv(200, 96, 1, 1, gain=1.0), (8, 96, 16, 16), 1),
        (lambda: EqualizedConv(64, 48, 3, 3, rescaling=Rescaling.up), (8, 48, 16, 16), 2),
    ],
)
def test_an_equalized_layer_keeps_the_scale_of_its_input(layer, shape, gain):
    made = layer()
    initialize(made, 0, "layer")
    with torch.no_grad():
        out = made(normal(*shape)).double()
    inner = out[..., 2:-2, 2:-2] if out.dim() == 4 else out  # the border sees zeros
    assert inner.var().item() == pytest.approx(gain, rel=0.1)  # He's gain^2 = 2 makes up for the activation …
    if gain == 2:
        assert F.leaky_relu(inner, 0.2).square().mean().item() == pytest.approx(1.04, rel=0.1)  # … 2 * (1 + .2^2) / 2


def test_fused_upsampling_is_nearest_upsampling_and_convolution():
    layer = EqualizedConv(5, 4, 3, 3, rescaling=Rescaling.up)
    initialize(layer, 0, "layer")
    layer.bias.data = normal(5)
    layer.double()
    x = normal(2, 4, 6, 6, dtype=torch.float64)
    weight = layer.weight.detach().numpy() * math.sqrt(2 / 36)
    expected = naive_conv(naive_up(x.numpy()), weight, layer.bias.detach().numpy())
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)


# ---- minibatch stddev -----------------------------------------------------------------------------------


def test_minibatch_stddev_of_a_worked_example_with_strided_groups():
    # Four images of two maps at 1x1; groups of 2: images 0 and 2, images 1 and 3.
    x = torch.tensor([[0.0, 10.0], [1.0, 7.0], [4.0, 10.0], [7.0, 1.0]])[:, :, None, None]
    # Group 0: biased deviations 2 and 0 (1e-4 with epsilon), mean 1.00005; group 1: 3 and 3, mean 3.
    out = with_stddev(x, 2)
    assert torch.equal(out[:, :2], x)
    assert out[:, 2].flatten().tolist() == pytest.approx([1.00005, 3.0, 1.00005, 3.0], abs=1e-6)


def test_minibatch_stddev_averages_over_all_maps_and_positions_into_one_even_map():
    x = torch.zeros(2, 2, 2, 2)
    x[1] = torch.tensor([[[2.0, 4.0], [6.0, 8.0]], [[10.0, 12.0], [14.0, 16.0]]])
    out = with_stddev(x, 2)  # deviations are half of each: 1 … 8, mean 4.5
    assert out.shape == (2, 3, 2, 2)
    torch.testing.assert_close(out[:, 2], torch.full((2, 2, 2), 4.5))


def test_minibatch_stddev_of_four_has_the_biased_variance():
    x = torch.tensor([0.0, 0.0, 4.0, 4.0])[:, None, None, None]  # deviation 2; the unbiased one is 2.309
    torch.testing.assert_close(with_stddev(x, 4)[:, 1].flatten(), torch.full((4,), 2.0))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_minibatch_stddev_of_identical_images_is_the_root_of_epsilon(count):
    x = normal(1, 3, 4, 4).expand(count, -1, -1, -1)
    found = with_stddev(x, 4)[:, 3]
    torch.testing.assert_close(found, torch.full((count, 4, 4), 1e-4), atol=1e-9, rtol=1e-3)


def test_minibatch_stddev_keeps_its_precision_far_from_0():
    # Deviation 1 around 1000: mean of squares minus square of mean would lose it in float32.
    x = torch.tensor([999.0, 1001.0])[:, None, None, None]
    torch.testing.assert_close(with_stddev(x, 2)[:, 1].flatten(), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_minibatch_stddev_of_features_in_half_precision_is_that_of_float32(dtype):
    x = (100 + 4 * normal(8, 6, 4, 4)).to(dtype)
    found = minibatch_stddev(x, 4)
    assert found.dtype == torch.float32
    # A mean of 100 is rounded by 100 * 2^-24, the deviations of 4 from it and their squares by less.
    torch.testing.assert_close(
        found.double(),
        torch.from_numpy(naive_stddev(x.double().numpy(), 4)[:, -1, 0, 0]),
        atol=4 * 100 * 2**-24,
        rtol=0,
    )


def test_a_group_larger_than_the_batch_is_the_whole_batch():
    x = normal(3, 2, 4, 4)
    assert torch.equal(with_stddev(x, 16), with_stddev(x, 3))
    deviation = np.sqrt(x.double().numpy().var(0) + 1e-8).mean()
    torch.testing.assert_close(with_stddev(x, 16)[:, 2], torch.full((3, 4, 4), float(deviation)))


def test_minibatch_stddev_does_not_depend_on_the_order_within_a_group():
    x = normal(8, 3, 4, 4)  # two groups: 0 2 4 6 and 1 3 5 7
    plain, shuffled = with_stddev(x, 4), with_stddev(x[[4, 7, 0, 1, 6, 3, 2, 5]], 4)
    torch.testing.assert_close(plain[:, 3], shuffled[:, 3], atol=1e-6, rtol=1e-6)
    across = with_stddev(x[[1, 0, 2, 3, 4, 5, 6, 7]], 4)
    assert (plain[:, 3] - across[:, 3]).abs().max() > 1e-4


def test_minibatch_stddev_takes_groups_that_are_strided_not_adjacent():
    x = torch.tensor([0.0, 5.0, 0.0, 5.0])[:, None, None, None].expand(-1, 2, 4, 4)
    torch.testing.assert_close(with_stddev(x, 2)[:, 2], torch.full((4, 4, 4), 1e-4))


def test_gradients_through_minibatch_stddev_are_those_of_finite_differences():
    x = normal(4, 1, 1, 2, seed=2).requires_grad_()
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5])
    (with_stddev(x, 2)[:, 1, 0, 0] * weights).sum().backward()

    def value(array):
        return (naive_stddev(array, 2)[:, 1, 0, 0] * weights.numpy()).sum()

    base = x.detach().double().numpy()
    for index in np.ndindex(base.shape):
        moved = np.zeros_like(base)
        moved[index] = 1e-6
        expected = (value(base + moved) - value(base - moved)) / 2e-6
        assert x.grad[index].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("count", [1, 4])
def test_first_and_second_gradients_are_finite_for_identical_images(count):
    x = normal(1, 3, 4, 4).repeat(count, 1, 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(with_stddev(x, 4).square().sum(), x, create_graph=True)
    assert torch.isfinite(gradient).all()
    gradient.square().sum().backward()
    assert torch.isfinite(x.grad).all()


@pytest.mark.parametrize(("count", "group"), [(4, 2), (4, 4), (3, 4), (1, 4), (6, 2)])
def test_joined_batches_have_groups_of_their_own(count, group):
    first, second, third = normal(3 * count, 3, 4, 4).chunk(3)
    joined = with_stddev(torch.cat([first, 5 * second, third]), group, sub_batches=3)
    expected = [naive_stddev(x.double().numpy(), group) for x in (first, 5 * second, third)]
    np.testing.assert_allclose(joined.numpy(), np.concatenate(expected), atol=1e-5)
