"""Layers whose products oneDNN computes, and the processors on which it does."""

import pytest
import torch

from pggan.core.architecture import Rescaling
from pggan.ops import products, winograd
from pggan.ops.convolution import DENSE, IM2COL, WINOGRAD, Kernel, convolve
from tests.networks.naive import normal

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@needs_onednn
@pytest.mark.parametrize(
    ("algorithm", "rescaling"),
    [*((algorithm, rescaling) for algorithm in (IM2COL, WINOGRAD) for rescaling in Rescaling), (DENSE, Rescaling.same)],
)
def test_layers_and_their_derivatives_are_those_without_it(algorithm, rescaling, monkeypatch):
    dense = algorithm is DENSE
    x, weight, bias = normal(2, 24, *(() if dense else (8, 8))), normal(16, 24, *(() if dense else (3, 3))), normal(16)

    def derivatives():
        images, taps = x.clone().requires_grad_(), weight.clone().requires_grad_()
        kernel = Kernel(algorithm.prepare(taps, rescaling, 0.1), algorithm, rescaling)
        result = convolve(images, kernel, bias)
        (first,) = torch.autograd.grad(result.square().sum(), images, create_graph=True)
        return result.detach(), first.detach(), torch.autograd.grad(first.square().sum(), taps)[0]

    found = []
    for flag in (True, False):
        for module in (products, winograd):
            monkeypatch.setattr(module, "prefers_onednn", lambda flag=flag: flag)
        monkeypatch.setattr(products, "prefers_onednn_for_batches", lambda flag=flag: flag)
        found.append(derivatives())
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())


@needs_onednn
@pytest.mark.parametrize(
    ("maker", "family", "flags", "single", "batches"),
    [
        ("AuthenticAMD", "26", "avx2 avx512f", True, True),
        ("AuthenticAMD", "25", "avx2 avx512f", True, False),  # Zen 4, in two steps
        ("AuthenticAMD", "", "avx2 avx512f", True, False),  # the system does not say
        ("AuthenticAMD", "25", "avx2", False, False),
        ("GenuineIntel", "6", "avx2 avx512f", False, False),
        ("", "", "", False, False),  # not Linux, or no x86
    ],
)
def test_onednn_multiplies_on_processors_with_avx512_that_mkl_does_not_use(
    maker, family, flags, single, batches, monkeypatch
):
    facts = {"vendor_id": maker, "cpu family": family, "flags": flags}
    monkeypatch.setattr(products, "processor_facts", lambda: facts)
    monkeypatch.setattr(products, "prefers_onednn", products.prefers_onednn.__wrapped__)
    assert products.prefers_onednn() is single
    assert products.prefers_onednn_for_batches.__wrapped__() is batches
