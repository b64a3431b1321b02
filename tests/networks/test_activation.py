"""Leaky ReLU and pixel norm: the definition, the gradient, and what half precision may round."""

import math

import pytest
import torch
import torch.nn.functional as F

from pggan.networks.activation import activate_and_normalize, pixel_norm
from tests.networks.naive import assert_rounded_once, normal

DOUBLE = torch.float64


def test_pixel_norm_divides_each_pixel_by_the_root_mean_square_of_its_features():
    x = normal(2, 5, 3, 4)
    found = pixel_norm(x)
    for n in range(2):
        for i in range(3):
            for j in range(4):
                values = x[n, :, i, j].tolist()
                root = math.sqrt(sum(v * v for v in values) / 5 + 1e-8)
                assert found[n, :, i, j].tolist() == pytest.approx([v / root for v in values], rel=1e-5)


def test_pixel_norm_of_hand_numbers():
    torch.testing.assert_close(pixel_norm(torch.tensor([[3.0, 4.0]])), torch.tensor([[3.0, 4.0]]) / math.sqrt(12.5))
    assert torch.equal(pixel_norm(torch.zeros(1, 4)), torch.zeros(1, 4))
    tiny = torch.full((1, 4), 1e-4)  # as large as the root of epsilon
    torch.testing.assert_close(pixel_norm(tiny), torch.full((1, 4), math.sqrt(0.5)))


def test_activation_and_norm_are_the_pixel_norm_of_the_leaky_relu_in_the_same_memory():
    x = normal(2, 5, 4, 4, dtype=DOUBLE)
    expected = pixel_norm(F.leaky_relu(x, 0.2))
    found = activate_and_normalize(x)
    torch.testing.assert_close(found, expected, atol=1e-14, rtol=0)
    assert found.data_ptr() == x.data_ptr()


def test_the_gradient_of_activation_and_norm_is_that_of_finite_differences():
    x = normal(2, 5, 3, 3, dtype=DOUBLE).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: activate_and_normalize(x.clone()), x)


def test_activation_and_norm_refuse_to_be_differentiated_twice():
    x = normal(1, 3, 2, 2, dtype=DOUBLE).requires_grad_()
    (gradient,) = torch.autograd.grad(activate_and_normalize(x.clone()).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


# ---- half precision --------------------------------------------------------------------------------------

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
FACTOR = pytest.mark.parametrize("factor", [1e-3, 1.0, 250.0])  # squares leave float16's range at both ends


def exact_scale(x):
    """What pixel norm multiplies each pixel by."""
    return 1 / (x.double().square().mean(1, keepdim=True) + 1e-8).sqrt()


@HALF
@FACTOR
def test_pixel_norm_in_half_precision_rounds_its_result_only(dtype, factor):
    x = (factor * normal(2, 64, 8, 8)).to(dtype)
    assert_rounded_once(pixel_norm(x), x.double() * exact_scale(x))


@HALF
@FACTOR
def test_activation_and_norm_in_half_precision_round_their_results_only(dtype, factor):
    x = (factor * normal(2, 64, 8, 8)).to(dtype)
    activated = F.leaky_relu(x, 0.2)
    assert_rounded_once(activate_and_normalize(x), activated.double() * exact_scale(activated))


@HALF
def test_the_gradient_of_activation_and_norm_in_half_precision_is_rounded_before_and_after_the_leaky_relu(dtype):
    x = normal(2, 64, 8, 8).to(dtype).requires_grad_()
    y, gradient = activate_and_normalize(x.clone()), normal(2, 64, 8, 8, seed=1).to(dtype)
    (found,) = torch.autograd.grad(y, x, gradient)
    wide, g = y.detach().double(), gradient.double()
    of_norm = exact_scale(F.leaky_relu(x.detach(), 0.2)) * (g - wide * (g * wide).mean(1, keepdim=True))
    slope = torch.where(wide > 0, 1.0, 0.2)
    assert_rounded_once(found, slope * of_norm, roundings=2)
