"""Winograd's convolution: its rounding, and batches in chunks.  That it is a convolution: test_convolution.py."""

import math

import pytest
import torch
import torch.nn.functional as F

from pggan.core.architecture import Rescaling
from pggan.networks import winograd
from pggan.networks.convolution import NATIVE, WINOGRAD, WINOGRAD2, convolution


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("method", [WINOGRAD, WINOGRAD2], ids=lambda method: method.name)
def test_a_batch_worked_on_in_chunks_is_the_batch_in_one(monkeypatch, method):
    x, kernel, gradient = normal(5, 4, 8, 8), normal(6, 4, 3, 3, seed=1), normal(5, 6, 8, 8, seed=2)
    made, results = method.transform(kernel, Rescaling.same, 1.0), []
    for chunk in (1, 2000, 2**21):
        monkeypatch.setattr("pggan.networks.winograd.CHUNK", chunk)
        results.append(
            (
                method.convolve(x, made, None, Rescaling.same),
                method.grad_input(gradient, made, Rescaling.same),
                method.grad_weight(x, gradient, Rescaling.same),
            )
        )
    for one, other in ((results[0], results[2]), (results[1], results[2])):
        for found, expected in zip(one, other, strict=True):
            torch.testing.assert_close(found, expected, atol=1e-11, rtol=0)


@pytest.mark.parametrize(("images", "expected"), [(16, [8, 8]), (7, [7]), (1, [1]), (24, [8, 8, 8]), (20, [10, 10])])
@pytest.mark.parametrize("onednn", [False, True])
def test_chunks_are_as_equal_as_can_be(monkeypatch, images, expected, onednn):
    """Of about 8 images each, and twice as many where oneDNN multiplies."""
    monkeypatch.setattr("pggan.networks.matmul.prefers_onednn", lambda: onednn)
    count = images * (2 if onednn else 1)
    batch, kernel = torch.empty(count, 1, 8, 8), torch.empty(4, 2, 2)  # 4 tiles, 4 numbers of the domain, 2 maps
    monkeypatch.setattr(winograd, "CHUNK", 8 * 4 * 4 * 2)
    found = [len(batch[rows]) for rows in winograd._chunks(batch, kernel, 4)]
    assert found == [size * (2 if onednn else 1) for size in expected]


@pytest.mark.parametrize(("winograds", "side"), [(WINOGRAD, 4), (WINOGRAD2, 2)], ids=["winograd", "winograd2"])
def test_rounding_of_winograds_method_is_that_of_the_direct_one_times_what_its_maps_enlarge(winograds, side):
    x, kernel = normal(4, 256, 16, 16), normal(256, 256, 3, 3, seed=1)
    exact = F.conv2d(x, kernel, padding=1)
    errors = []
    for method in (NATIVE, winograds):
        made = method.transform(kernel.float(), Rescaling.same, 1.0)
        found = convolution(x.float(), made, torch.zeros(256), method, Rescaling.same)
        errors.append(((found - exact).square().mean() / exact.square().mean()).sqrt().item())
    # Random roundings of at most u in a sum of n: sqrt(n) u.  Winograd's sums are of 256 maps, then of the domain's
    # numbers, twice.  Products of random pixels and taps have the squared norms of the maps' rows as their variances;
    # a plain convolution adds 3 of variance 1 in each direction.
    pixels, taps, result = (
        torch.tensor(rows) for rows in (winograd.PIXELS[side], winograd.TAPS[side], winograd.RESULT[side])
    )
    variances = result.float().square() @ (pixels.float().square().sum(1) * taps.square().sum(1))
    enlarged, u = (variances.mean() / 3).item(), 2**-24  # the root, for two directions
    assert errors[0] < math.sqrt(9 * 256) * u
    assert errors[1] < math.sqrt(256 + 2 * (side + 2) ** 2) * enlarged * u
