"""Every method of convolution is the same function, with the same derivatives of first and second order."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from pggan.core.architecture import Rescaling
from pggan.networks.convolution import (
    DIRECT,
    IM2COL,
    MATMUL,
    NATIVE,
    POINTWISE,
    WINOGRAD,
    WINOGRAD2,
    Method,
    cached_box,
    convolution,
    convolve,
    fuse_resampling,
    input_gradients_only,
    linear,
    method_for,
    pointwise,
    resampling_box,
)
from pggan.networks.numerics import ComputeOptions

METHODS = {"native": NATIVE, "direct": DIRECT, "im2col": IM2COL, "winograd": WINOGRAD, "winograd2": WINOGRAD2}


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_definition(x, kernel, bias, rescaling):
    """Nearest upsampling, 3x3 convolution and box pooling one by one."""
    if rescaling is Rescaling.up:
        x = F.interpolate(x, scale_factor=2, mode="nearest")
    x = F.conv2d(x, kernel, bias, padding=1)
    return F.avg_pool2d(x, 2) if rescaling is Rescaling.down else x


@pytest.mark.parametrize("rescaling", Rescaling)
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_method_is_the_definition(name, rescaling, layout):
    method = METHODS[name]
    x, kernel, bias = normal(3, 5, 8, 16), normal(7, 5, 3, 3, seed=1), normal(7, seed=2)
    transformed = method.transform(kernel, rescaling, 0.3)
    found = convolution(x.contiguous(memory_format=layout), transformed, bias, method, rescaling)
    torch.testing.assert_close(found, by_definition(x, 0.3 * kernel, bias, rescaling), atol=1e-11, rtol=0)


@pytest.mark.parametrize("rescaling", Rescaling)
@pytest.mark.parametrize("name", METHODS)
def test_first_and_second_derivatives_are_those_of_the_definition(name, rescaling):
    method, found = METHODS[name], []
    direction = normal(2, 3, 8, 8, seed=4)
    for variant in ("definition", "method"):
        x, kernel, bias = (t.requires_grad_() for t in (normal(2, 3, 8, 8), normal(4, 3, 3, 3, seed=1), normal(4)))
        if variant == "method":
            y = convolution(x, method.transform(kernel, rescaling, 1.0), bias, method, rescaling)
        else:
            y = by_definition(x, kernel, bias, rescaling)
        first = torch.autograd.grad(y.tanh().square().sum(), (x, kernel, bias), create_graph=True)
        slope = (first[0] * direction).sum() + first[1].square().sum() + first[2].square().sum()
        found.append([y, *first, *torch.autograd.grad(slope, (x, kernel, bias))])
    for expected, result in zip(*found, strict=True):
        torch.testing.assert_close(result, expected, atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("rescaling", Rescaling)
@pytest.mark.parametrize("name", ["direct", "im2col", "winograd", "winograd2"])
def test_forward_derivatives_are_those_of_the_definition(name, rescaling):
    method = METHODS[name]
    x, tangent, kernel, bias = normal(2, 3, 8, 8), normal(2, 3, 8, 8, seed=5), normal(4, 3, 3, 3, seed=1), normal(4)
    transformed = method.transform(kernel, rescaling, 1.0)
    _, found = torch.func.jvp(lambda x: convolution(x, transformed, bias, method, rescaling), (x,), (tangent,))
    torch.testing.assert_close(found, by_definition(tangent, kernel, None, rescaling), atol=1e-11, rtol=0)


@pytest.mark.parametrize("rescaling", Rescaling)
def test_im2col_in_bf16_rounds_each_window_and_their_sum(rescaling):
    x, kernel = normal(2, 5, 8, 8).bfloat16(), IM2COL.transform(normal(4, 5, 3, 3, seed=1), rescaling, 1.0).bfloat16()
    y = DIRECT.convolve(x.double(), kernel.double(), None, rescaling)
    gradient = normal(*y.shape, seed=2).bfloat16()
    for function, definition, operands in (
        (IM2COL.convolve, DIRECT.convolve, (x, kernel, None)),
        (IM2COL.grad_input, DIRECT.grad_input, (gradient, kernel)),
        (IM2COL.grad_weight, DIRECT.grad_weight, (x, gradient)),
    ):
        wide = [None if operand is None else operand.double() for operand in operands]
        exact = definition(*wide, rescaling)
        terms = definition(*(None if operand is None else operand.abs() for operand in wide), rescaling)
        found = function(*operands, rescaling)
        assert found.dtype == torch.bfloat16
        # Two roundings of half a unit in the last place; and those in float32 of the sum of at most 2^11 products.
        assert ((found.double() - exact).abs() <= (torch.finfo(torch.bfloat16).eps + 2**11 * 2**-24) * terms).all()


@pytest.mark.parametrize(
    ("shape", "kernel", "rescaling", "method"),
    [
        ((16, 512, 16, 16), (512, 512, 3, 3), Rescaling.same, WINOGRAD),
        ((16, 512, 4, 4), (512, 512, 3, 3), Rescaling.up, WINOGRAD),
        ((4, 512, 4, 4), (512, 512, 3, 3), Rescaling.same, IM2COL),  # too few tiles for so large a kernel
        ((16, 64, 16, 16), (64, 64, 3, 3), Rescaling.same, NATIVE),  # too narrow
        ((2, 64, 128, 128), (64, 64, 3, 3), Rescaling.same, DIRECT),
        ((256, 512, 6, 6), (512, 512, 3, 3), Rescaling.same, NATIVE),  # no whole tiles
    ],
)
def test_each_shape_gets_the_method_that_is_fastest_for_it(shape, kernel, rescaling, method):
    x = torch.empty(1).expand(shape)
    assert method_for(x, torch.empty(1).expand(kernel), rescaling) is method
    if method in (IM2COL, WINOGRAD):
        assert method_for(x.bfloat16(), torch.empty(1).expand(kernel), rescaling) is NATIVE


def test_methods_differ_even_where_they_share_their_functions():
    """Captured and compiled steps are kept by their options, which hold a method."""
    assert len({*METHODS.values(), MATMUL, POINTWISE}) == 7
    assert ComputeOptions(method=NATIVE) != ComputeOptions(method=DIRECT)


def dense_layer():
    """Images' features [3, 200], a kernel [150, 200] wide enough for derivatives of our own, and a bias [150]."""
    return normal(3, 200), normal(150, 200, seed=1), normal(150, seed=2)


def pointwise_layer():
    """Images [2, 3, 8, 8], a kernel [5, 3, 1, 1] and a bias [5]."""
    return normal(2, 3, 8, 8), normal(5, 3, 1, 1, seed=1), normal(5, seed=2)


@pytest.mark.parametrize(("layer", "function"), [(dense_layer, linear), (pointwise_layer, pointwise)])
def test_derivatives_of_dense_and_pointwise_layers_are_those_of_pytorch(layer, function):
    direction, found = normal(*layer()[0].shape, seed=4), []
    for method in (NATIVE, DIRECT):
        x, kernel, bias = (t.requires_grad_() for t in layer())
        y = function(x, kernel, bias, method)
        assert (y.grad_fn.name() == "ConvolutionBackward") == (method is DIRECT)
        first = torch.autograd.grad(y.tanh().square().sum(), (x, kernel, bias), create_graph=True)
        slope = (first[0] * direction).sum() + first[1].square().sum() + first[2].square().sum()
        found.append([y, *first, *torch.autograd.grad(slope, (x, kernel, bias))])
    for expected, result in zip(*found, strict=True):
        torch.testing.assert_close(result, expected, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize(("layer", "function"), [(dense_layer, linear), (pointwise_layer, pointwise)])
def test_forward_derivatives_of_dense_and_pointwise_layers_are_those_of_pytorch(layer, function):
    x, kernel, bias = layer()
    tangent = normal(*x.shape, seed=5)
    _, found = torch.func.jvp(lambda images: function(images, kernel, bias, DIRECT), (x,), (tangent,))
    torch.testing.assert_close(found, function(tangent, kernel, torch.zeros_like(bias), NATIVE), atol=1e-11, rtol=0)


def test_gradients_of_dense_layers_come_in_the_layout_of_the_kernel():
    x, kernel, bias = (t.requires_grad_() for t in dense_layer())
    (slope,) = torch.autograd.grad(linear(x, kernel, bias, None).tanh().sum(), x, create_graph=True)
    for gradient in torch.autograd.grad(slope.square().sum(), (kernel, x)):
        assert gradient.is_contiguous()


@pytest.mark.parametrize("base", [DIRECT, IM2COL, WINOGRAD, MATMUL], ids=lambda method: method.name)
def test_gradients_of_images_alone_take_no_work_for_kernels_and_biases(base):
    """Neither in the first derivative; nor do they change the second one, which the kernels are part of."""
    asked = []

    def grad_weight(*given):
        asked.append(1)
        return base.grad_weight(*given)

    class Sums(TorchDispatchMode):
        """Counts the sums over some dimensions, which gradients of biases are."""

        count = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            self.count += function is torch.ops.aten.sum.dim_IntList
            return function(*args, **(kwargs or {}))

    method = Method(base.name, base.transform, base.convolve, base.grad_input, grad_weight)
    found = []
    for alone in (False, True):
        x, kernel, bias = dense_layer() if base is MATMUL else (normal(2, 3, 8, 8), normal(4, 3, 3, 3), normal(4))
        for given in (x, kernel, bias):
            given.requires_grad_()
        y = convolution(x, base.transform(kernel, Rescaling.same, 1.0), bias, method, Rescaling.same).tanh().sum()
        asked.clear()
        with Sums() as sums, input_gradients_only() if alone else nullcontext():
            (slope,) = torch.autograd.grad(y, x, create_graph=True)
        assert len(asked) == sums.count == (0 if alone else 1)
        found.append(torch.autograd.grad(slope.square().sum(), (kernel, bias)))
        assert asked
    for expected, result in zip(*found, strict=True):
        assert torch.equal(result, expected)


def test_kernels_get_their_gradients_again_after_an_error():
    with pytest.raises(KeyboardInterrupt), input_gradients_only():
        raise KeyboardInterrupt
    x, kernel, bias = (t.requires_grad_() for t in dense_layer())
    linear(x, kernel, bias, None).sum().backward()
    assert kernel.grad is not None
    assert bias.grad is not None


@pytest.mark.parametrize("rescaling", [Rescaling.up, Rescaling.down])
@pytest.mark.parametrize("made", ["on fake tensors", "inside torch.func"])
def test_what_is_kept_of_a_fused_kernel_is_real_wherever_it_is_made(rescaling, made):
    cached_box.cache_clear()
    kernel, x = normal(2, 3, 3, 3), normal(1, 3, 4, 4)
    if made == "on fake tensors":
        with FakeTensorMode() as mode:
            fuse_resampling(mode.from_tensor(kernel), rescaling, 0.3)
        assert cached_box.cache_info().currsize == 0
    else:
        torch.func.vjp(lambda x: (x.sum() * fuse_resampling(kernel, rescaling, 0.3)).sum(), x)
    found = fuse_resampling(kernel, rescaling, 0.3)
    torch.testing.assert_close(convolve(x, found, None, rescaling), by_definition(x, 0.3 * kernel, None, rescaling))
    box = cached_box(rescaling, 0.3, kernel.dtype, kernel.device)
    assert not torch._C._functorch.is_functorch_wrapped_tensor(box)
    assert torch.equal(box, resampling_box(rescaling, 0.3, kernel.dtype, kernel.device))
    assert cached_box.cache_info().currsize == 1
