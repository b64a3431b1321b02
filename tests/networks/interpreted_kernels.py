"""Triton's kernels in Triton's interpreter, on CPU tensors, against float64; `test_fused.py` runs this file.

The interpreter is chosen when triton is first imported, so these tests need a process of their own.
"""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from pggan.losses.gradient_penalty import GradientPenalty, PenaltyAt, PenaltyContext
from pggan.networks import fused
from pggan.networks.activation import EPSILON, LEAKY_SLOPE, activate, activate_and_normalize
from pggan.networks.bilateral import SIGMA, bilateral
from pggan.networks.convolution import DIRECT, input_gradients_only
from pggan.networks.fade import fade
from pggan.networks.networks import Discriminator, Generator, use_options
from pggan.networks.numerics import ComputeOptions
from tests.networks.naive import TINY, assert_rounded_once, normal, ready

UNIT = 2**-24  # float32 rounds by at most this share
SHAPES = [(1, 6, 5, 5), (2, 16, 3, 3), (1, 33, 2, 2), (2, 1, 3, 3), (9, 24)]  # images and dense layers
EACH = pytest.mark.parametrize("shape", SHAPES, ids=str)
DTYPE = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])


@pytest.fixture(autouse=True)
def launched(monkeypatch):
    """The names of the kernels that were started, all of which have to work."""
    names = []
    launch = fused.Kernels.launch

    def watched(self, name, programs, *arguments, **constants):
        names.append(name)
        return launch(self, name, programs, *arguments, **constants)

    monkeypatch.setattr(fused, "DEVICE", "cpu")
    monkeypatch.setattr(fused.Kernels, "launch", watched)
    fused.tile.cache_clear()
    yield names
    assert fused.KERNELS.working


@pytest.fixture
def small_tiles(monkeypatch):
    """Several tiles per program, and the last one with room left."""
    monkeypatch.setattr(fused, "TILE", 64)
    monkeypatch.setattr(fused, "PROGRAMS", 3)


def inputs(shape, dtype):
    """x, side by side in memory, the bias, and a gradient."""
    x, gradient = (normal(*shape, seed=seed).to(dtype) for seed in (0, 1))
    layout = fused.memory_format(x)
    return x.contiguous(memory_format=layout), normal(shape[1], seed=2), gradient.contiguous(memory_format=layout)


def exact_activation(x, bias):
    return F.leaky_relu(x.double() + bias.double().view(-1, *[1] * (x.ndim - 2)), LEAKY_SLOPE)


def assert_close(found, exact, sizes):
    """`found` is `exact` to one rounding, beside those of float32 in sums of as many numbers as there are features.

    A sum of n numbers whose sizes add up to s is off by at most n * s * UNIT; 10 more operations surround it.
    """
    assert_rounded(found, exact, sizes * (exact.shape[1] + 10) / 10)


def assert_rounded(found, exact, terms=None):
    """As `assert_rounded_once`; but instead of rounding to bfloat16, the interpreter cuts off, twice as much."""
    assert_rounded_once(found, exact, 2 if found.dtype is torch.bfloat16 else 1, terms)


def assert_sums(found, terms, sizes):
    """The same of sums of all `terms` of a feature, whose own errors are as above."""
    dims = (0, *range(2, terms.ndim))
    count = terms.numel() // terms.shape[1] + terms.shape[1] + 10
    assert found.dtype is torch.float32
    assert ((found.double() - terms.sum(dims)).abs() <= count * UNIT * sizes.sum(dims)).all()


@EACH
@DTYPE
def test_activation_and_its_gradients_are_rounded_once(shape, dtype, launched, small_tiles):
    x, bias, gradient = (tensor.requires_grad_() for tensor in inputs(shape, dtype))
    y = activate(x, bias)
    found = torch.autograd.grad(y, (x, bias), gradient)
    exact = exact_activation(x, bias).detach()
    assert_rounded(y.detach(), exact)
    through = gradient.detach().double() * torch.where(exact > 0, 1.0, LEAKY_SLOPE)
    assert_rounded(found[0], through)
    assert_sums(found[1], through, through.abs())
    assert launched == ["bias_act_forward", "bias_act_backward"]


@EACH
@DTYPE
def test_activation_and_norm_and_their_gradients_are_rounded_once(shape, dtype, launched, small_tiles):
    x, bias, gradient = (tensor.requires_grad_() for tensor in inputs(shape, dtype))
    y = activate_and_normalize(x.clone(), bias)
    found = torch.autograd.grad(y, (x, bias), gradient)
    z = exact_activation(x, bias).detach()
    scale = 1 / (z.square().mean(1, keepdim=True) + EPSILON).sqrt()
    assert_close(y.detach(), z * scale, (z * scale).abs())
    wide, g, slope = y.detach().double(), gradient.detach().double(), torch.where(z > 0, 1.0, LEAKY_SLOPE)
    through = slope * scale * (g - wide * (g * wide).mean(1, keepdim=True))
    sizes = slope * scale * (g.abs() + wide.abs() * (g * wide).abs().mean(1, keepdim=True))
    assert_close(found[0], through, sizes)
    assert_sums(found[1], through, sizes)
    assert launched == ["bias_act_forward", "bias_act_backward"]


@EACH
def test_second_and_forward_derivatives_of_the_activation_go_through_the_kernels(shape, launched, small_tiles):
    x, bias, gradient = (tensor.requires_grad_() for tensor in inputs(shape, torch.float32))
    direction, weights = normal(*shape, seed=3), normal(shape[1], seed=4)
    slope = torch.where(exact_activation(x, bias).detach() > 0, 1.0, LEAKY_SLOPE)
    of_x, of_bias = torch.autograd.grad(activate(x, bias), (x, bias), gradient, create_graph=True)
    (second,) = torch.autograd.grad((of_x * direction).sum() + (of_bias * weights).sum(), gradient)
    spread = weights.view(-1, *[1] * (len(shape) - 2))
    exact = slope * (direction.double() + spread.double())
    assert_rounded(second, exact, direction.abs() + spread.abs())
    _, tangent = torch.func.jvp(lambda x: activate(x, bias.detach()), (x.detach(),), (direction,))
    assert_rounded(tangent, slope * direction.double())
    assert launched == [
        "bias_act_forward",
        "bias_act_backward",
        "bias_act_backward",
        "bias_act_forward",
        "bias_act_backward",
    ]


@DTYPE
@pytest.mark.parametrize(
    ("shape", "alpha"),
    [*((shape, 0.3) for shape in SHAPES), *((SHAPES[0], alpha) for alpha in (0.0, 0.8, 1.0))],
    ids=str,
)
def test_a_blend_and_its_gradients_are_rounded_once(shape, dtype, alpha, launched, small_tiles):
    old, _, gradient = (tensor.requires_grad_() for tensor in inputs(shape, dtype))
    new = (5 * normal(*shape, seed=3)).to(dtype).contiguous(memory_format=fused.memory_format(old)).requires_grad_()
    weight = torch.tensor(alpha)
    found = fade(old, new, weight)
    a, wide = weight.double(), gradient.detach().double()
    exact = (1 - a) * old.detach().double() + a * new.detach().double()
    assert_rounded(found.detach(), exact, old.detach().double().abs() + new.detach().double().abs())
    if alpha in (0, 1):
        assert torch.equal(found, new if alpha else old)
    of_old, of_new = torch.autograd.grad(found, (old, new), gradient, create_graph=True)
    assert_rounded(of_old.detach(), (1 - a) * wide, wide.abs())
    assert_rounded(of_new.detach(), a * wide, wide.abs())
    (second,) = torch.autograd.grad((of_old * old.detach()).sum() + (of_new * new.detach()).sum(), gradient)
    assert torch.equal(second, found)
    assert launched == ["blend", "blend_backward", "blend"]


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (1, 1, 3, 3), (3, 4, 4, 4)], ids=str)
@pytest.mark.parametrize("scale", [0.02, 0.1, 1.0])
def test_the_bilateral_filter_and_its_gradient_are_those_of_float64(shape, scale, launched, small_tiles):
    images, _, gradient = inputs(shape, torch.float32)
    images = (scale * images).requires_grad_()
    found = bilateral(images, 1)
    (slope,) = torch.autograd.grad(found, images, gradient)
    assert launched == ["bilateral_forward", "bilateral_backward"]
    wide = images.detach().double().requires_grad_()
    exact = bilateral(wide, 1)
    (exact_slope,) = torch.autograd.grad(exact, wide, gradient.double())
    assert launched == ["bilateral_forward", "bilateral_backward"]  # float64 has no kernel
    # Some 20 operations for each of nine neighbours; the exponent e of a weight multiplies its rounding, and
    # e * exp(-e) < 1. A weight's derivative in a colour is at most exp(-1/2) / SIGMA.
    largest, g = float(wide.detach().abs().max()), float(gradient.abs().max())
    assert float((found - exact).detach().abs().max()) <= 9 * 20 * UNIT * 2 * largest
    size = 2 * g + 0.61 / SIGMA * shape[1] * g * (4 * 2 + 1) * largest
    assert float((slope - exact_slope).abs().max()) <= 9 * 20 * UNIT * size


def test_the_penalty_alone_sums_no_gradient_of_biases(monkeypatch):
    asked = []
    gradient = fused.grad_input
    monkeypatch.setattr(fused, "grad_input", lambda *a, sums: asked.append(sums) or gradient(*a, sums=sums))
    x, bias, _ = (tensor.requires_grad_() for tensor in inputs((2, 3, 4, 4), torch.float32))
    for context in (input_gradients_only(), nullcontext()):
        with context:
            torch.autograd.grad(activate(x, bias).sum(), (x, bias), allow_unused=True)
    assert asked == [False, True]


def gradients(network, function):
    """The gradients of all weights that have one, as one vector in float64, of a scalar that `function` calculates."""
    with use_options(network, ComputeOptions(method=DIRECT)):
        function(network).backward()
    found = [weight.grad.double().flatten() for weight in network.weights if weight.grad is not None]
    return torch.cat(found)


# The longest sums have 9 * 10 terms, and every number of a gradient comes through some 3 * 6 layers at most.
WHOLE = 3 * 6 * 9 * 10 * UNIT


def test_the_gradient_of_a_generator_is_that_of_float64(launched):
    latents, direction = normal(3, TINY.latent_size), normal(3, 3, 8, 8, seed=1)

    def score(g):
        kind = g.weights[0].dtype
        return (g(latents.to(kind), None, 8, torch.tensor(0.5, dtype=kind)) * direction.to(kind)).sum()

    found, exact = gradients(ready(Generator, TINY), score), gradients(ready(Generator, TINY).double(), score)
    two_per_level = ["bias_act_forward"] * 4 + ["blend", "blend_backward"] + ["bias_act_backward"] * 4
    assert launched == two_per_level
    assert (found - exact).norm() <= WHOLE * exact.norm()


@pytest.mark.parametrize("jvp", [False, True])
def test_the_gradient_of_a_penalised_discriminator_is_that_of_float64(jvp, launched):
    images = normal(4, 3, 8, 8)
    penalty = GradientPenalty(name="p", at=PenaltyAt.reals, weight=10.0, target=1.0)
    context, alpha = PenaltyContext((penalty,), 0, None, None, jvp), torch.tensor(0.5)

    def loss(d):
        points = images.to(d.weights[0].dtype)
        critic = lambda images, sub_batches=1: d(images, 8, alpha.to(images.dtype), sub_batches)  # noqa: E731
        if jvp:
            value, scores = penalty.by_jvp(critic, points, context)
            return (value + critic(points)[0]).sum()
        scores = critic(points.requires_grad_())[0]
        return (penalty.by_autograd(points, scores, context) + scores).sum()

    found, exact = gradients(ready(Discriminator, TINY), loss), gradients(ready(Discriminator, TINY).double(), loss)
    assert len(launched) >= 3 * 6  # of six layers: forward, backward, and the backward pass of that or the tangent
    assert (found - exact).norm() <= WHOLE * exact.norm()
