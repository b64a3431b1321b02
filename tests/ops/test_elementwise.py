"""Activations, pixel norm, fades and the bilateral filter: derivatives, and half precision."""

import pytest
import torch
import torch.nn.functional as F

from pggan.ops.convolution import switched
from pggan.ops.elementwise import activate_and_normalize, fade, pixel_norm
from pggan.ops.filters import bilateral
from tests.networks.naive import normal

HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
LARGE = pytest.mark.parametrize("factor", [1e-3, 1.0, 250.0])  # squares leave float16's range at both ends
ONCE = {  # differentiable once, on one of two shapes
    "activation and norm": (activate_and_normalize, (2, 5, 4, 4)),
    "bilateral": (lambda x: bilateral(0.1 * x, 2), (2, 3, 4, 5)),
}


@pytest.mark.parametrize("name", ONCE)
def test_written_gradients_are_those_of_finite_differences_and_of_the_plain_twin(name):
    function, shape = ONCE[name]
    x, found = normal(*shape, dtype=torch.float64).requires_grad_(), []
    assert torch.autograd.gradcheck(lambda x: function(x.clone()), x)
    for reference in (False, True):
        with switched(reference=reference):
            y = function(x.clone())
            found.append((y.detach(), *torch.autograd.grad(y.tanh().square().sum(), x)))
    torch.testing.assert_close(*found)


# ---- half precision --------------------------------------------------------------------------------------


def assert_rounded_once(found, exact, roundings=1, terms=None):
    """`found`, in half precision, is `exact` to one rounding (or more), beside float32's rounding of the `terms`.

    A rounding changes a number by at most half a unit in its last place, which is eps / 2 of it, or half the smallest
    number near 0.  Float32's, of some ten operations, are at most 10 * 2^-24 of the terms.
    """
    kind = torch.finfo(found.dtype)
    wide = exact.abs() if terms is None else terms
    bound = roundings * (kind.eps / 2 * exact.abs() + kind.smallest_normal * kind.eps / 2) + 10 * 2**-24 * wide
    assert ((found.double() - exact).abs() <= bound).all()


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
