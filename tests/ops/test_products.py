"""Products of matrices: the same by oneDNN as by PyTorch, and which processors multiply by it."""

import pytest
import torch

from pggan.core.architecture import Rescaling
from pggan.ops import products, winograd
from pggan.ops.convolution import DENSE, IM2COL, WINOGRAD, Kernel, convolve
from tests.networks.naive import normal

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")


@pytest.fixture
def onednn(monkeypatch):
    """Products go to oneDNN, whatever the processor, or to PyTorch: `onednn(flag)`."""

    def choose(flag):
        for module, name in (
            (products, "prefers_onednn"), (products, "prefers_onednn_for_batches"), (winograd, "prefers_onednn")
        ):  # fmt: skip
            monkeypatch.setattr(module, name, lambda: flag)

    choose(True)
    return choose


@needs_onednn
@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("left", ["rows", "columns", "apart"])
@pytest.mark.parametrize("right", ["rows", "columns", "apart"])
def test_products_are_right_however_the_matrices_lie(left, right):
    """A sum of K products, each rounded, in any order: off by at most K roundings of the sum of their sizes."""

    def matrices(layout, rows, columns, seed):
        if layout == "columns":
            return normal(3, columns, rows, seed=seed).transpose(1, 2)
        return normal(3, rows, columns, seed=seed) if layout == "rows" else normal(rows, 3, columns).transpose(0, 1)

    def require(found, exact, sizes):
        assert ((found - exact).abs() <= 40 * torch.finfo(torch.float32).eps * sizes).all()

    a, b, row = matrices(left, 5, 40, 0), matrices(right, 40, 7, 1), torch.arange(7.0)
    exact, sizes = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    require(products.bmm(a, b), exact, sizes)
    require(products.mm(a[1], b[1], row=row), exact[1] + row, sizes[1] + row)
    out = torch.empty(7, 5).t()
    assert products.mm(a[2], b[2], out=out) is out
    require(out, exact[2], sizes[2])
    several = torch.full((3, 5, 7), torch.nan)
    products.bmm(a, b, several)
    products.bmm(a, b, several, add=True)
    require(several / 2, exact, sizes)


@needs_onednn
@pytest.mark.parametrize(
    ("algorithm", "rescaling"),
    [*((algorithm, rescaling) for algorithm in (IM2COL, WINOGRAD) for rescaling in Rescaling), (DENSE, Rescaling.same)],
)
def test_layers_and_their_derivatives_are_those_without_it(algorithm, rescaling, onednn):
    dense = algorithm is DENSE
    x, weight, bias = normal(2, 24, *(() if dense else (8, 8))), normal(16, 24, *(() if dense else (3, 3))), normal(16)

    def derivatives():
        images, taps = x.clone().requires_grad_(), weight.clone().requires_grad_()
        kernel = Kernel(algorithm.prepare(taps, rescaling, 0.1), algorithm, rescaling)
        result = convolve(images, kernel, bias)
        (first,) = torch.autograd.grad(result.square().sum(), images, create_graph=True)
        return result.detach(), first.detach(), torch.autograd.grad(first.square().sum(), taps)[0]

    found = derivatives()
    onednn(False)
    for ours, theirs in zip(found, derivatives(), strict=True):
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
