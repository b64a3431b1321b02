"""Activations, pixel norm, resampling, fades and the bilateral filter: definitions, derivatives, half precision."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pggan.ops.convolution import switched
from pggan.ops.elementwise import activate_and_normalize, fade, pixel_norm, upsample
from pggan.ops.filters import bilateral, blur
from tests.networks.naive import (
    assert_rounded_once,
    naive_bilateral,
    naive_blur,
    naive_pixel_norm,
    normal,
)

DOUBLE = torch.float64
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
LARGE = pytest.mark.parametrize("factor", [1e-3, 1.0, 250.0])  # squares leave float16's range at both ends
ONCE = {  # differentiable once, on one of two shapes
    "activation and norm": (activate_and_normalize, (2, 5, 4, 4)),
    "bilateral": (lambda x: bilateral(0.1 * x, 2), (2, 3, 4, 5)),
}


def test_pixel_norm_divides_each_pixel_by_the_root_mean_square_of_its_features():
    x = normal(2, 5, 3, 4, dtype=DOUBLE)
    np.testing.assert_allclose(pixel_norm(x), naive_pixel_norm(x.numpy()), atol=1e-14)
    tiny = torch.full((1, 4), 1e-4)  # as large as the root of epsilon
    torch.testing.assert_close(pixel_norm(tiny), torch.full((1, 4), math.sqrt(0.5)))
    assert torch.equal(pixel_norm(torch.zeros(1, 4)), torch.zeros(1, 4))


@pytest.mark.parametrize("name", ONCE)
def test_written_gradients_are_those_of_finite_differences_and_of_the_plain_twin(name):
    function, shape = ONCE[name]
    x, found = normal(*shape, dtype=DOUBLE).requires_grad_(), []
    assert torch.autograd.gradcheck(lambda x: function(x.clone()), x)
    for reference in (False, True):
        with switched(reference=reference):
            y = function(x.clone())
            found.append((y.detach(), *torch.autograd.grad(y.tanh().square().sum(), x)))
    torch.testing.assert_close(*found)


# ---- half precision --------------------------------------------------------------------------------------


def exact_scale(x):
    """What pixel norm multiplies each pixel by."""
    return 1 / (x.double().square().mean(1, keepdim=True) + 1e-8).sqrt()


@HALF
@LARGE
def test_norms_in_half_precision_round_their_results_only(dtype, factor):
    x = (factor * normal(2, 64, 8, 8)).to(dtype)
    activated = F.leaky_relu(x, 0.2)
    assert_rounded_once(pixel_norm(x), x.double() * exact_scale(x))
    assert_rounded_once(activate_and_normalize(x), activated.double() * exact_scale(activated))


@pytest.mark.parametrize("alpha", [0.3, 0.9])
@HALF
def test_a_fade_in_half_precision_rounds_its_result_only(dtype, alpha):
    old, new = (3 * normal(1000)).to(dtype), normal(1000, seed=1).to(dtype)
    exact = (1 - alpha) * old.double() + alpha * new.double()
    for given in (alpha, torch.tensor(alpha)):  # a tensor inside CUDA graphs
        found = fade(old, new, given)
        assert found.dtype == dtype
        assert_rounded_once(found, exact, terms=old.double().abs() + new.double().abs())


def test_blur_is_the_mean_of_the_neighbours_inside_and_makes_upsampling_bilinear():
    image, inside = normal(2, 3, 8, 8, dtype=DOUBLE), (..., slice(1, -1), slice(1, -1))
    np.testing.assert_allclose(blur(image), naive_blur(image.numpy()), atol=1e-14)
    found, bilinear = blur(upsample(image)), F.interpolate(image, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(found[inside], bilinear[inside])
    flat = torch.full((1, 3, 8, 8), 0.7)
    torch.testing.assert_close(blur(flat), flat, rtol=10 * 2**-24, atol=0)  # at the borders, too


# ---- bilateral filter -------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.02, 1.0])
def test_the_bilateral_filter_is_the_mean_of_pixels_of_similar_colour(scale):
    images = scale * normal(2, 3, 8, 8, dtype=DOUBLE)
    for passes, layout in ((1, torch.channels_last), (3, torch.contiguous_format)):
        found = bilateral(images.contiguous(memory_format=layout), passes)
        np.testing.assert_allclose(found, naive_bilateral(images.numpy(), passes), atol=1e-12)
