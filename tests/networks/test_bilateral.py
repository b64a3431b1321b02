"""The bilateral filter: what it smooths and what it keeps, and its gradient."""

import pytest
import torch

from pggan.networks import bilateral as module
from pggan.networks import fused
from pggan.networks.bilateral import SIGMA, bilateral
from tests.networks.naive import naive_bilateral, normal


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 1, 4, 4), (3, 4, 5, 5)])
@pytest.mark.parametrize("scale", [0.02, 0.1, 1.0])
def test_it_is_the_mean_of_pixels_of_similar_colour(shape, scale):
    images = scale * normal(*shape, dtype=torch.float64)
    for passes in (1, 4):
        expected = torch.from_numpy(naive_bilateral(images.numpy(), passes))
        torch.testing.assert_close(bilateral(images, passes), expected, rtol=0, atol=1e-12)


def test_flat_areas_and_edges_stay_and_unevenness_falls():
    flat = torch.zeros(1, 3, 16, 16)
    flat[..., 8:] = 1.0  # twelve standard deviations away: a weight of 0
    assert torch.equal(bilateral(flat, 2), flat)
    uneven = flat + 0.1 * SIGMA * normal(1, 3, 16, 16)
    inner = (..., slice(2, -2), slice(2, 6))
    left = (bilateral(uneven, 2) - flat)[inner].std() / (uneven - flat)[inner].std()
    # Twice the mean of nine independent numbers: the weights of their sum are those of two boxes, [1, 2, 3, 2, 1] / 9
    # in both directions, and the sum of their squares is (19 / 81)^2.
    assert float(left) == pytest.approx(19 / 81, rel=0.5)


def test_the_gradient_is_that_of_the_definition():
    images = (0.1 * normal(2, 3, 4, 5, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(bilateral, (images, 2))


def test_a_kernel_that_fails_backwards_leaves_the_same_gradient(monkeypatch):
    """What the forward kernel saved is what PyTorch's operations need."""
    images = (0.1 * normal(2, 3, 4, 4, dtype=torch.float64)).requires_grad_()
    expected = bilateral(images, 2)
    (wanted,) = torch.autograd.grad(expected.square().sum(), images)
    monkeypatch.setattr(fused, "bilateral", lambda images, factor: module.filter_once(images))
    (found,) = torch.autograd.grad(bilateral(images, 2).square().sum(), images)
    torch.testing.assert_close(found, wanted)


def test_layout_and_compiled_arithmetic_do_not_change_it(monkeypatch):
    images = (0.1 * normal(2, 3, 8, 8, dtype=torch.float64)).requires_grad_()
    expected = bilateral(images, 2)
    (wanted,) = torch.autograd.grad(expected.square().sum(), images)
    torch.testing.assert_close(bilateral(images.contiguous(memory_format=torch.channels_last), 2), expected)
    monkeypatch.setattr(module.torch.compiler, "is_compiling", lambda: True)
    found = bilateral(images, 2)
    (gradient,) = torch.autograd.grad(found.square().sum(), images)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradient, wanted)


def test_a_second_derivative_is_refused_not_wrong():
    images = (0.1 * normal(1, 3, 4, 4)).requires_grad_()
    (gradient,) = torch.autograd.grad(bilateral(images, 2).square().sum(), images, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
