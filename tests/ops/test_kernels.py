"""Triton's kernels in Triton's interpreter, on CPU tensors, against PyTorch's operations.

The interpreter is chosen when triton is first imported, so this file runs itself in a process of its own.
"""

import os
import subprocess
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pggan import ops
from pggan.core.architecture import Rescaling
from pggan.core.errors import StepFailed
from pggan.losses.base import PenaltyContext, Reals
from pggan.networks import layers
from pggan.networks.layers import (
    ComputeOptions,
    ConvWithStddev,
    Equalized,
    backpropagate,
    minibatch_stddev,
    use_options,
)
from pggan.networks.networks import Discriminator, Generator, initialize
from pggan.ops import elementwise, fused, packed, rgb
from pggan.ops.convolution import DENSE, DIRECT, PACKED, POINTWISE, Algorithm, Switches, switched
from pggan.ops.elementwise import LEAKY_SLOPE, pixel_norm
from pggan.ops.preparation import prepare_together
from pggan.ops.products import LinearMap
from tests.definitions import LOSSES, ready, variant
from tests.networks.naive import normal as drawn

SHAPES = [(1, 6, 5, 5), (2, 16, 3, 3), (1, 33, 2, 2), (2, 1, 3, 3), (9, 24)]  # images and dense layers
PACKS = {Rescaling.same: (9, 16), Rescaling.up: (32, 9), Rescaling.down: (8, 5)}  # of four, two and eight pixels
# float32 rounds sums of some 40 terms; a result in bf16 is cut off, not rounded, by the interpreter.
TOLERANCES = {torch.float32: 40 * 2**-24, torch.bfloat16: 2**-7}


def normal(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> Tensor:
    """Numbers that need not be dense in memory, as a leaf."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    layout = torch.channels_last if len(shape) == 4 and seed != 1 else torch.contiguous_format
    return x.contiguous(memory_format=layout).requires_grad_()


def require_close(found: Tensor, exact: Tensor, dtype: torch.dtype) -> None:
    """Equal to the roundings of steps in `dtype`."""
    error, size = (tensor.detach().norm() for tensor in (found.double() - exact, exact))
    assert error <= TOLERANCES[dtype] * size.clamp(min=1), (error, size)


def wide(*tensors: Tensor) -> list[Tensor]:
    """The same numbers in float64, as leaves."""
    return [tensor.detach().double().requires_grad_() for tensor in tensors]


def check_activation(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Value, gradients, and the gradient of these: `fused.BiasAct` against the leaky ReLU of the sum."""
    x, gradient, direction = (normal(shape, seed, dtype) for seed in (0, 1, 2))
    bias = normal(shape[1:2], 3, torch.float32)
    sums = fused.PixelSums([bias])

    def derivatives(y: Tensor, x: Tensor, gradient: Tensor) -> list[Tensor]:
        (of_x,) = torch.autograd.grad(y, x, gradient, create_graph=True)
        slope = (of_x.double() * direction.double()).sum()
        return [y, of_x, *torch.autograd.grad(slope, gradient, retain_graph=True)]

    found = derivatives(fused.BiasAct.apply(x, bias, lambda: sums.rows(0)), x, gradient)
    ends = wide(x, bias, gradient)
    y = F.leaky_relu(ends[0] + ends[1].view(-1, *[1] * (len(shape) - 2)), LEAKY_SLOPE)
    expected = [*derivatives(y, ends[0], ends[2]), *torch.autograd.grad(y, ends[1], ends[2])]
    for one, other in zip(found + sums.take([None]), expected, strict=True):
        require_close(one, other, dtype)


def check_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Value, factors and gradients of the kernels with a scale, which `ActivationAndNorm` calls."""
    x, gradient, bias = normal(shape, 0, dtype), normal(shape, 1, dtype), normal(shape[1:2], 3, torch.float32)
    y = x.detach().clone()
    scale = fused.bias_act_norm_(y, bias.detach())
    sums = fused.PixelSums([torch.empty(2), bias])
    of_x = [fused.bias_act_backward(y, gradient.detach(), scale, sums.rows(1)) for _ in range(2)]
    unused, of_bias = sums.take([None, None])
    assert unused is None
    found = [y, of_x[1], of_bias / 2]  # of two uses
    x, bias, gradient = wide(x, bias, gradient)
    expected = pixel_norm(F.leaky_relu(x + bias.view(-1, *[1] * (len(shape) - 2)), LEAKY_SLOPE))
    for one, other in zip(found, [expected, *torch.autograd.grad(expected, (x, bias), gradient)], strict=True):
        require_close(one, other, dtype)


def check_blend(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Value, gradients, and the gradient of these: `fused.blend` against `torch.lerp`, exactly at both ends."""
    old, new, gradient = (normal(shape, seed, dtype) for seed in (0, 1, 2))
    for alpha in (0.0, 0.3, 0.8, 1.0):
        weight = torch.tensor(alpha)
        y = LinearMap.apply(fused.blend, fused.blend_backward, weight, old, new)
        assert alpha not in (0, 1) or torch.equal(y, new if alpha else old)
        shares = torch.autograd.grad(y, (old, new), gradient, create_graph=True)
        slope = sum((share * other.detach()).sum() for share, other in zip(shares, (old, new), strict=True))
        assert torch.equal(torch.autograd.grad(slope, gradient)[0], y)
        ends = wide(old, new)
        expected = torch.lerp(*ends, weight.double())
        for one, other in zip(
            (y, *shares), (expected, *torch.autograd.grad(expected, ends, gradient.double())), strict=True
        ):
            require_close(one, other, dtype)


def check_stddev(sub_batches: int, group: int, dtype: torch.dtype) -> None:
    """Value, gradients, and the gradients of these: `Stddev` against `minibatch_stddev`, and pixel norm of latents."""
    x, upstream = normal((12, 3, 4, 4), 0, dtype), normal((12,), 1, torch.float32)
    direction = normal((12, 3, 4, 4), 2, dtype)

    def derivatives(y: Tensor, x: Tensor, upstream: Tensor) -> list[Tensor]:
        (slope,) = torch.autograd.grad(y, x, upstream, create_graph=True)
        return [y, slope, *torch.autograd.grad((slope.double() * direction.double()).sum(), (x, upstream))]

    found = derivatives(fused.Stddev.apply(x, (group, 12 // sub_batches // group)), x, upstream)
    ends = wide(x, upstream)
    for one, other in zip(found, derivatives(minibatch_stddev(ends[0], group, sub_batches), *ends), strict=True):
        require_close(one, other, dtype)
    latents = normal((5, 20), 3, torch.float32).detach()
    require_close(fused.pixel_norm(latents), pixel_norm(latents), torch.float32)


def rows_of(sums: fused.PixelSums) -> list[fused.Rows]:
    """The rows of a weight and a bias."""
    return [lambda: sums.rows(0), lambda: sums.rows(1)]


def check_rgb(channels: int, features: int, dtype: torch.dtype) -> None:
    """Layers from and to images: values, gradients, and from images the gradients of a penalty on the gradient."""
    shape, size = (2, channels, 3, 5), (2, features, 3, 5)
    images, direction = (normal(shape, seed, torch.float32) for seed in (1, 2))  # in both layouts
    images = torch.cat([images.flatten(1)] * 2, 1).detach()[:, : images[0].numel()].view(shape).requires_grad_()  # gaps
    upstream, weights_of_y = normal(size, 3, dtype), normal(size, 4, dtype)
    weight, bias = normal((features, channels, 1, 1), 5, torch.float32), normal((features,), 6, torch.float32)
    sums = fused.PixelSums([weight, bias])

    def derivatives(y: Tensor, given: list[Tensor], others: list[Tensor], *, aside: bool) -> list[Tensor]:
        with switched(weight_gradients=False):
            (slope,) = torch.autograd.grad(y, given[0], given[1], create_graph=True)
        total = (slope.double() * others[0]).sum() + (y.double() * others[1]).sum()
        found = torch.autograd.grad(total, given, allow_unused=aside)
        more = sums.take([None, None]) if aside else found[2:]
        return [y, slope, *found[:2], *more]  # type: ignore[list-item]

    found = rgb.FromRgb.apply(images, weight, bias, rgb.Layer(False, 0.3, dtype, rows_of(sums)))
    others = [each.detach().double() for each in (direction, weights_of_y)]
    found = derivatives(found, [images, upstream, weight, bias], others, aside=True)
    ends = wide(images, upstream, weight, bias)
    expected = F.leaky_relu(F.conv2d(ends[0], 0.3 * ends[2], ends[3]), LEAKY_SLOPE)
    for one, other in zip(found, derivatives(expected, ends, others, aside=False), strict=True):
        require_close(one, other, dtype)

    features_in, weight = normal(size, 3, dtype), normal((channels, features, 1, 1), 5, torch.float32)
    bias, gradient = normal((channels,), 6, torch.float32), normal(shape, 1, torch.float32).detach()
    sums = fused.PixelSums([weight, bias])
    y = rgb.ToRgb.apply(features_in, weight, bias, rgb.Layer(True, 0.3, dtype, rows_of(sums)))
    y.backward(gradient)
    ends = wide(features_in, weight, bias)
    expected = F.conv2d(ends[0], 0.3 * ends[1], ends[2])
    found = [y, features_in.grad, *sums.take([None, None])]
    for one, other in zip(found, [expected, *torch.autograd.grad(expected, ends, gradient.double())], strict=True):
        require_close(one, other, dtype)


def check_preparation(dtype: torch.dtype) -> None:
    """Kernels, and gradients of weights and biases from several uses: `prepare_together` against `prepare`."""
    layers: list[tuple[Equalized, Algorithm]] = [(Equalized(20, 17), DENSE), (Equalized(3, 17, 1, 1), POINTWISE)]
    for way, packs in PACKS.items():
        layers += [(Equalized(*sizes, 3, 3, rescaling=way), how) for sizes, how in (((5, 6), DIRECT), (packs, PACKED))]
    layers += [(ConvWithStddev(7, 5, 3, 3), DIRECT)]
    for number, (layer, _) in enumerate(layers):
        initialize(layer, number, "layer")
        if number % 2 and layer.weight.ndim == 4:
            layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)
        layer.computing.options = ComputeOptions(dtype=dtype)
    requests = [layer.request(how, 0.3) for layer, how in layers]
    plans: dict[object, object] = {}
    for _ in range(2):
        prepared = [
            layer.assemble(how, *one)
            for (layer, how), one in zip(layers, prepare_together(requests, dtype, plans), strict=True)  # type: ignore[arg-type]
        ]
    assert len(plans) == 1
    found, expected, ends = [], [], []
    for number, ((layer, how), one) in enumerate(zip(layers, prepared, strict=True)):
        twin = layer.prepare(how, 0.3)
        found += [one.kernel.tensor] + [one.sums] * (one.sums is not None)
        expected += [twin.kernel.tensor] + [twin.sums] * (twin.sums is not None)
        gradients = [normal(tuple(twin.kernel.tensor.shape), seed, dtype).detach() for seed in range(number % 3 + 1)]
        assert one.kernel.aside is not None
        one.kernel.aside.extend(gradients[1:])
        ends += [((one.kernel.tensor, twin.kernel.tensor), gradients[0], sum(gradients))]
        if one.sums is not None and twin.sums is not None:
            ends += [((one.sums, twin.sums), torch.ones_like(one.sums), torch.ones_like(one.sums))]
        one.rows[0]()[1].add_(1)
        ends += [((one.bias, layer.bias), torch.ones_like(one.bias), torch.ones_like(one.bias) * 2)]
    for pair in zip(found, expected, strict=True):
        require_close(*pair, dtype)
    weights = [weight for layer, _ in layers for weight in layer.parameters()]
    of_found = torch.autograd.grad([pair[0] for pair, _, _ in ends], weights, [one for _, one, _ in ends])
    of_twin = torch.autograd.grad([pair[1] for pair, _, _ in ends], weights, [one for _, _, one in ends])
    for pair in zip(of_found, of_twin, strict=True):
        require_close(*pair, dtype)


# ---- all kernels in a step ----------------------------------------------------------------------------------------

ARCHITECTURE = variant(resolution=8, fmap_base=32, fmap_max=5, latent_size=6, stddev_group=2)


def algorithm_on_gpu(x: Tensor, shape: torch.Size, rescaling: Rescaling) -> Algorithm:
    """As on a GPU, with packs of pixels already at 8x8."""
    if len(shape) == 2:
        return DENSE
    return POINTWISE if shape[-1] == 1 else PACKED if x.shape[-1] == 8 else DIRECT


def gradients(reference: bool) -> list[Tensor]:
    """The gradients of D's loss with its penalty, and of G's loss, from the second of two steps."""
    loss, options = LOSSES["wgan_gp"], ComputeOptions(reference=reference)
    g, d = ready(Generator, ARCHITECTURE), ready(Discriminator, ARCHITECTURE)
    reals, mix, found = Reals(drawn(2, 3, 8, 8), None, None), torch.full((2, 1, 1, 1), 0.3), []

    def critic(images: Tensor, sub_batches: int = 1) -> tuple[Tensor, Tensor]:
        return d(images, 8, torch.tensor(0.4), sub_batches)  # type: ignore[no-any-return]

    for _ in range(2):
        g.zero_grad()
        d.zero_grad()
        with use_options(g, options):
            fakes = g(drawn(2, 6, seed=1), None, 8, torch.tensor(0.4))
            with use_options(d, options):
                terms = loss.for_d(critic, reals, fakes, PenaltyContext(loss.penalties(), 1, mix, None)).loss
                backpropagate(sum(term.mean() for term in terms.values()), through_d=False)
            with use_options(d, options, frozen=True):
                backpropagate(loss.for_g(critic, reals, fakes).loss["G/wasserstein"].mean(), through_d=True)
        found = [weight.grad for weight in (*d.weights, *g.weights) if weight.grad is not None]
    return found


def check_step() -> None:
    """With packs of two pixels already at 8x8."""
    expected, serves = gradients(reference=True), lambda tensor: not Switches.reference
    with (
        mock.patch.multiple(elementwise, serves=serves),
        mock.patch.multiple(layers, serves=serves, algorithm_for=algorithm_on_gpu),
        mock.patch.object(packed, "MAPS", 12),
    ):
        for one, other in zip(gradients(reference=False), expected, strict=True):
            assert (one - other).norm() <= 1e-5 * other.norm().clamp(min=1e-3), (one, other)


def check_kernels() -> None:
    """In float32 and bf16."""
    for dtype in TOLERANCES:
        for shape in SHAPES:
            check_activation(shape, dtype)
            if shape[1] > 1:  # the norm of one number is its sign
                check_norm(shape, dtype)
            check_blend(shape, dtype)
        check_rgb(3, 6, dtype)
        check_rgb(1, 33, dtype)
        check_stddev(1, 4, dtype)
        check_stddev(2, 3, dtype)
    check_preparation(torch.bfloat16)


def test_a_kernel_that_does_not_compile_is_reported_and_the_run_continues_without_kernels():
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("PassManager::run failed\nat line 3")

    compiled = SimpleNamespace(widen={(3,): fails})
    with mock.patch.object(ops, "triton_kernels", compiled, create=True), pytest.raises(StepFailed) as caught:
        fused.launch("widen", 3, torch.zeros(1))
    assert caught.value.problem == "The Triton kernel widen fails: PassManager::run failed."
    assert caught.value.compute == {"kernels": "reference"}


@pytest.mark.slow
@pytest.mark.parametrize("check", ["check_kernels", pytest.param("check_step", marks=pytest.mark.rare)])
@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed: it comes with torch for CUDA")
def test_kernels_and_a_step_have_the_values_and_derivatives_of_the_plain_operations(check):
    command, variables = [sys.executable, "-m", __name__, check], os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(command, env=variables, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


if __name__ == "__main__":
    fused.TILE, fused.PROGRAMS = 64, 3  # several tiles per program, and the last one with room left
    globals()[sys.argv[1]]()
