"""Gradients of kernels that several passes share: the same numbers by one product, where that saves time."""

from functools import partial

import pytest
import torch

from pggan.core.architecture import Rescaling
from pggan.losses.gradient_penalty import GradientPenalty, PenaltyAt, PenaltyContext
from pggan.networks import deferred_gradients
from pggan.networks.convolution import DIRECT, IM2COL, MATMUL, WINOGRAD, WINOGRAD2, Method, convolution
from pggan.networks.deferred_gradients import shared_kernel
from pggan.networks.networks import Discriminator, initialize, use_options
from pggan.networks.numerics import ComputeOptions
from tests.definitions import variant
from tests.networks.naive import normal

METHODS = [DIRECT, IM2COL, WINOGRAD, WINOGRAD2]


@pytest.fixture
def products(monkeypatch):
    """The numbers of images of each deferred gradient, by product."""
    found, apply = [], deferred_gradients.SharedKernel.backward

    def backward(ctx, gradient):
        found.append([len(one.x) for one in ctx.deferred.factors])
        return apply(ctx, gradient)

    monkeypatch.setattr(deferred_gradients.SharedKernel, "backward", staticmethod(backward))
    return found


def weight_gradient(method: Method, rescaling: Rescaling, x, weight, *, share: bool):
    """The gradient of what D minimises in a step: scores of two batches, and a penalty on the gradient of one."""
    weight = weight.clone().requires_grad_()
    kernel = method.transform(weight, rescaling, 0.1)
    kernel = shared_kernel(kernel) if share else kernel
    at = x.clone().requires_grad_()
    score = convolution(at, kernel, None, method, rescaling).sin().sum()
    both = convolution(torch.cat([x, -2 * x]), kernel, None, method, rescaling).cos().sum()
    (slope,) = torch.autograd.grad(score, at, create_graph=True)
    (score + both + slope.square().sum()).backward()
    return weight.grad


@pytest.mark.parametrize("rescaling", Rescaling)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_the_gradient_is_that_of_separate_products(method, rescaling, products):
    side = 2 if rescaling is Rescaling.up else 4
    x, weight = normal(2, 96, side, side).double(), normal(80, 96, 3, 3, seed=1).double()
    found = weight_gradient(method, rescaling, x, weight, share=True)
    separate = weight_gradient(method, rescaling, x, weight, share=False)
    torch.testing.assert_close(found, separate, rtol=1e-9, atol=1e-9 * separate.abs().max().item())
    # Forward at `at`, at both, and the penalty's first derivative, which is used once and differentiated once.
    ((*images,),) = products
    assert sorted(images) == [2, 2, 4]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("prepared", [True, False])
def test_a_penalty_by_forward_mode_has_the_same_gradient(method, prepared, products):
    """`torch.func` copies what it passes on, and wraps what is made inside it: neither may lose a gradient."""
    network = Discriminator(variant(resolution=8, fmap_base=1024, fmap_max=128)).double()
    initialize(network, 0, "d")
    penalty, images = GradientPenalty(name="R1", at=PenaltyAt.reals, weight=5.0), normal(4, 3, 8, 8).double()

    def gradients(*, jvp):
        network.zero_grad()
        context = PenaltyContext((penalty,), missing_levels=0, mix=None, scale=None, jvp=jvp)
        with use_options(network, ComputeOptions(method=method)):
            critic = partial(network, resolution=8)
            before = critic(images)[0].sum() if prepared else 0
            if jvp:
                value, _ = penalty.by_jvp(critic, images, context)
            else:
                at = images.clone().requires_grad_()
                value = penalty.by_autograd(at, critic(at)[0], context)
            (value.sum() + before + critic(images)[0].sum()).backward()
        return torch.cat([weight.grad.flatten() for weight in network.parameters() if weight.grad is not None])

    found, expected = gradients(jvp=True), gradients(jvp=False)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9 * expected.abs().max().item())
    assert any(len(images) > 1 for images in products) or not prepared


def test_what_is_dropped_leaves_nothing_behind(products):
    x, weight = normal(2, 40, 4, 4).double().requires_grad_(), normal(48, 40, 3, 3, seed=1).double().requires_grad_()
    kernel = shared_kernel(WINOGRAD.transform(weight, Rescaling.same, 1.0))
    score = convolution(x, kernel, None, WINOGRAD, Rescaling.same).square().sum()
    torch.autograd.grad(score, x, retain_graph=True)
    (found,) = torch.autograd.grad(score, weight)
    plain = convolution(x, WINOGRAD.transform(weight, Rescaling.same, 1.0), None, WINOGRAD, Rescaling.same)
    torch.testing.assert_close(found, torch.autograd.grad(plain.square().sum(), weight)[0])


def test_a_dense_layer_is_one_product_too(products):
    x, weight = normal(3, 64).double(), normal(72, 64, seed=1).double()
    found = weight_gradient(MATMUL, Rescaling.same, x, weight, share=True)
    torch.testing.assert_close(found, weight_gradient(MATMUL, Rescaling.same, x, weight, share=False))
    assert [sorted(images) for images in products] == [[3, 3, 6]]


def test_of_large_images_each_gradient_is_calculated_at_once(products):
    """Nothing is kept for longer, as memory would grow by all feature maps of a step."""
    x, weight = normal(2, 40, 16, 16).double(), normal(48, 40, 3, 3, seed=1).double()
    found = weight_gradient(DIRECT, Rescaling.same, x, weight, share=True)
    torch.testing.assert_close(found, weight_gradient(DIRECT, Rescaling.same, x, weight, share=False))
    assert products == [[]]


def test_a_gradient_that_is_differentiated_again_is_calculated_at_once(products):
    x, weight = normal(2, 40, 4, 4).double(), normal(48, 40, 3, 3, seed=1).double().requires_grad_()
    kernel = shared_kernel(weight)
    result = convolution(x.requires_grad_(), kernel, None, DIRECT, Rescaling.same)
    (first,) = torch.autograd.grad(result.square().sum(), weight, create_graph=True)
    assert products == [[]]
    assert torch.autograd.grad(first.sum(), x)[0].abs().sum() > 0


def test_a_kernel_without_a_gradient_stays_what_it_is():
    kernel = normal(4, 4, 3, 3)
    assert shared_kernel(kernel) is kernel


def test_the_wide_layers_of_a_step_multiply_once(products):
    """Three convolutions and a dense layer, of 128 feature maps each; the last layer's scores are narrow."""
    network = Discriminator(variant(resolution=8, fmap_base=1024, fmap_max=128))
    initialize(network, 0, "d")
    with use_options(network, ComputeOptions(method=WINOGRAD)):
        scores = network(normal(4, 3, 8, 8), 8)[0].sum() + network(normal(2, 3, 8, 8, seed=1), 8)[0].sum()
        scores.backward()
    assert products == [[2, 4]] * 4
    products.clear()
    with use_options(network, ComputeOptions(method=WINOGRAD), frozen=True):
        network(normal(2, 3, 8, 8).requires_grad_(), 8)[0].sum().backward()
    assert products == []
