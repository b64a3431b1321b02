"""Every algorithm is the same function as its plain twin, with the same derivatives of first and second order."""

from contextlib import nullcontext

import pytest
import torch

from pggan.core.architecture import Rescaling
from pggan.networks.layers import Equalized
from pggan.networks.networks import initialize
from pggan.ops import convolution
from pggan.ops.convolution import (
    DENSE,
    DIRECT,
    IM2COL,
    MIN_TILES,
    PACKED,
    POINTWISE,
    REFERENCE,
    TORCH,
    WINOGRAD,
    Kernel,
    algorithm_for,
    convolve,
    share_kernel,
    switched,
)
from pggan.ops.elementwise import activate_and_normalize
from tests.networks.naive import normal

WIDE = {"torch": TORCH, "direct": DIRECT, "im2col": IM2COL, "packed": PACKED, "winograd": WINOGRAD}  # of 3x3 kernels
ALGORITHMS = {**WIDE, "dense": DENSE, "1x1": POINTWISE}
KERNELS = dict.fromkeys(WIDE, (3, 3)) | {"dense": (), "1x1": (1, 1)}
CASES = [*((name, each) for name in WIDE for each in Rescaling), ("dense", Rescaling.same), ("1x1", Rescaling.same)]
EACH = pytest.mark.parametrize(("name", "rescaling"), CASES, ids=str)
# Of the largest number: Winograd's maps enlarge the rounding of sums some ten times, and each derivative adds sums.
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-4}


def assert_alike(found, expected):
    for one, other in zip(found, expected, strict=True):
        bound = TOLERANCES[one.dtype] * other.abs().max().item()
        torch.testing.assert_close(one, other, rtol=0, atol=bound)


def with_derivatives(function, *given):
    """What `function` gives of tensors, its gradients, and the gradients of these gradients."""
    given = [tensor.clone().requires_grad_() for tensor in given]
    result = function(*given)
    first = torch.autograd.grad(result.tanh().square().sum(), given, create_graph=True)
    direction = normal(*given[0].shape, seed=9, dtype=result.dtype)
    slope = (first[0] * direction).sum() + sum(one.square().sum() for one in first[1:])
    second = torch.autograd.grad(slope, given)
    return [tensor.detach() for tensor in (result, *first, *second)]


@EACH
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_an_algorithm_is_its_plain_twin_in_value_and_derivatives(name, rescaling, dtype):
    layout = torch.channels_last if dtype is torch.float32 and name != "dense" else torch.contiguous_format
    x = normal(3, 5, *((8, 16) if KERNELS[name] else ()), dtype=dtype).contiguous(memory_format=layout)
    weight, bias = normal(7, 5, *KERNELS[name], seed=1, dtype=dtype), normal(7, seed=2, dtype=dtype)
    found, expected = (
        with_derivatives(
            lambda x, weight, bias, of=of: convolve(x, Kernel(of.prepare(weight, rescaling, 0.3), of, rescaling), bias),
            x, weight, bias,
        )
        for of in (ALGORITHMS[name], REFERENCE)
    )  # fmt: skip
    assert_alike(found, expected)


LAYERS = [  # outputs, inputs and sides of a weight; sides of the features
    *((129, 131, 3, 3, side) for side in (4, 8, 6)),  # odd numbers of maps; 6: no whole tiles
    (3, 131, 1, 1, 8),
    (131, 3, 1, 1, 8),
    (150, 200),
    (12, 200),
    (5, 7, 3, 3, 64),  # PyTorch's own algorithm from here on has our derivatives
]


@pytest.mark.parametrize("shape", LAYERS, ids=str)
@pytest.mark.parametrize("count", [1, MIN_TILES - 1, MIN_TILES])
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_a_layer_of_any_shape_is_its_plain_twin_whatever_the_batch(shape, count, dtype):
    """A batch of 15 images of 4x4 has fewer tiles than Winograd's algorithm is worth, one of 16 as many."""
    weight, side = shape[: 2 if len(shape) == 2 else 4], shape[4:] * 2
    for rescaling in Rescaling if weight[2:] == (3, 3) else (Rescaling.same,):
        layer = Equalized(*weight, rescaling=rescaling).to(dtype)
        initialize(layer, 0, "layer")
        x, found = normal(count if side != (64, 64) else 1, weight[1], *side, dtype=dtype), []
        for reference in (False, True):
            with switched(reference=reference):
                layer.zero_grad(set_to_none=True)
                at = x.clone().requires_grad_()
                y = layer(at)
                (slope,) = torch.autograd.grad(y.square().mean(), at, create_graph=True)
                (y.mean() + (1e3 * slope).square().sum()).backward()
                found.append([y.detach(), slope.detach(), at.grad, layer.weight.grad])
        assert_alike(*found)


@pytest.mark.parametrize(
    ("count", "maps", "side", "rescaling", "algorithm"),
    [
        (16, 512, 16, Rescaling.same, WINOGRAD),
        (16, 512, 4, Rescaling.up, WINOGRAD),
        (15, 512, 4, Rescaling.same, IM2COL),  # too few tiles for so large a kernel
        (16, 64, 16, Rescaling.same, TORCH),  # too narrow
        (2, 64, 128, Rescaling.same, DIRECT),
        (256, 512, 6, Rescaling.same, TORCH),  # no whole tiles
    ],
)
def test_each_shape_gets_the_algorithm_that_is_fastest_for_it(count, maps, side, rescaling, algorithm):
    x, shape = torch.empty(1).expand(count, maps, side, side), torch.Size((maps, maps, 3, 3))
    assert algorithm_for(x, shape, rescaling) is algorithm
    with switched(reference=True):
        assert algorithm_for(x, shape, rescaling) is REFERENCE
    if algorithm in (IM2COL, WINOGRAD):
        assert algorithm_for(x.bfloat16(), shape, rescaling) is TORCH


def test_gpus_pack_the_pixels_of_large_images_with_few_maps_in_half_precision():
    def chosen(maps, side, dtype=torch.bfloat16):
        x = torch.empty(4, 16, side, side, dtype=dtype, device="meta")
        return algorithm_for(x, torch.Size((maps, 16, 3, 3)), Rescaling.down)

    assert chosen(16, 1024) is PACKED
    assert chosen(128, 1024) is chosen(16, 64) is chosen(16, 1024, torch.float32) is DIRECT


@pytest.mark.parametrize("rescaling", Rescaling)
def test_packed_convolutions_in_half_precision_round_as_plain_ones_and_stay_channels_last(rescaling):
    x = normal(2, 16, 4, 16).to(torch.bfloat16, memory_format=torch.channels_last)
    weight, bias = normal(16, 16, 3, 3, seed=1), normal(16, seed=2)
    found = []
    for algorithm in (PACKED, DIRECT):

        def layer(x, weight, bias, of=algorithm):
            kernel = Kernel(of.prepare(weight, rescaling, 0.1).bfloat16(), of, rescaling)
            return convolve(x, kernel, bias.bfloat16())

        found.append(with_derivatives(layer, x, weight, bias))
        y = layer(x, weight.requires_grad_(), bias)
        assert y.is_contiguous(memory_format=torch.channels_last)
        activate_and_normalize(y)  # may overwrite the result
    for one, other in zip(*found, strict=True):
        assert (one.double() - other.double()).norm() <= 2**-7 * other.double().norm()


def test_a_batch_that_winograd_works_on_in_chunks_is_the_batch_in_one():
    """Eleven images, of 64 tiles of 128 maps each, are two chunks of different sizes; each image alone is one."""
    x, weight = normal(11, 128, 32, 32), normal(128, 128, 3, 3, seed=1).requires_grad_()
    kernel = Kernel(WINOGRAD.prepare(weight, Rescaling.same, 0.03), WINOGRAD, Rescaling.same)
    parts = [convolve(one, kernel) for one in x.split(1)]
    (expected,) = torch.autograd.grad(sum(part.square().sum() for part in parts), weight, retain_graph=True)
    whole = convolve(x, kernel)
    (found,) = torch.autograd.grad(whole.square().sum(), weight)
    assert_alike([whole.detach(), found], [torch.cat(parts).detach(), expected])


# ---- gradients of images alone, and of shared kernels -------------------------------------------------------


@pytest.mark.parametrize("alone", [False, True])
def test_gradients_of_images_alone_take_no_work_for_kernels_and_leave_their_second_derivatives(alone):
    asked = []
    counted = DIRECT._replace(grad_weight=lambda *given: asked.append(1) or DIRECT.grad_weight(*given))
    x, weight, bias = normal(2, 3, 8, 8).requires_grad_(), normal(4, 3, 3, 3).requires_grad_(), normal(4)
    y = convolve(x, Kernel(weight, counted, Rescaling.same), bias.requires_grad_()).tanh().sum()
    with switched(weight_gradients=False) if alone else nullcontext():
        (slope,) = torch.autograd.grad(y, x, create_graph=True)
    assert len(asked) == (not alone)
    found = torch.autograd.grad(slope.square().sum(), (weight, bias))
    plain = torch.nn.functional.conv2d(x, weight, bias, padding=1).tanh().sum()
    (slope,) = torch.autograd.grad(plain, x, create_graph=True)
    assert_alike(found, torch.autograd.grad(slope.square().sum(), (weight, bias)))


def gradient_of(algorithm, rescaling, x, weight, *, share):
    """The gradient of what D minimises: scores of two batches, and a penalty on the gradient of one."""
    weight = weight.clone().requires_grad_()
    kernel = Kernel(algorithm.prepare(weight, rescaling, 0.1), algorithm, rescaling)
    kernel = share_kernel(kernel) if share else kernel
    at = x.clone().requires_grad_()
    score, both = convolve(at, kernel).sin().sum(), convolve(torch.cat([x, -2 * x]), kernel).cos().sum()
    with switched(weight_gradients=False):
        (slope,) = torch.autograd.grad(score, at, create_graph=True)
    (score + both + slope.square().sum()).backward()
    return weight.grad


@EACH
@pytest.mark.parametrize("small", [True, False, "one of two"])
def test_deferred_gradients_of_a_kernel_are_the_sums_of_separate_ones_by_one_product(
    name, rescaling, small, monkeypatch
):
    """Of large images, each is calculated at once: memory would grow by all feature maps of a step."""
    asked, algorithm = [], ALGORITHMS[name]

    def counted(*given, **options):
        asked.append(given)
        return ALGORITHMS[name].grad_weight(*given, **options)

    algorithm = algorithm if algorithm.grad_weight is None else algorithm._replace(grad_weight=counted)
    side = (1 if name == "1x1" else 4) if small else 16
    x = normal(2, 96, *(() if name == "dense" else (side, side)), dtype=torch.float64)
    weight = normal(80, 96, *KERNELS[name], seed=1, dtype=torch.float64)
    if small == "one of two":
        kernel = algorithm.prepare(weight, rescaling, 0.1)
        sizes = x.numel() + algorithm.convolve(x, kernel, None, rescaling).numel()
        monkeypatch.setattr(convolution, "MIN_KERNEL_TO_FACTORS", kernel.numel() / (1.5 * sizes))
    found = gradient_of(algorithm, rescaling, x, weight, share=True)
    most = 2 if small == "one of two" else 1 if small or name == "dense" else 3
    assert len(asked) == (0 if name == "torch" else most)
    assert_alike([found], [gradient_of(algorithm, rescaling, x, weight, share=False)])
