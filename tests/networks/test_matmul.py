"""Products of matrices: the same by both libraries, and where each one multiplies."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from pggan.core.architecture import Rescaling
from pggan.networks import matmul
from pggan.networks.convolution import IM2COL, MATMUL, WINOGRAD, WINOGRAD2, convolution
from tests.networks.naive import normal

EPSILON = torch.finfo(torch.float32).eps

needs_onednn = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")),
    reason="this PyTorch has no oneDNN",
)


@pytest.fixture
def onednn(monkeypatch):
    """Products go to oneDNN, whatever the processor; gives the shapes of those that do."""
    shapes, multiply = [], matmul._onednn

    def counted(left, right, row=None):
        shapes.append((tuple(left.shape), tuple(right.shape)))
        return multiply(left, right, row)

    monkeypatch.setattr(matmul, "prefers_onednn", lambda: True)
    monkeypatch.setattr(matmul, "prefers_onednn_for_batches", lambda: True)
    monkeypatch.setattr(matmul, "_onednn", counted)
    return shapes


def require_product(found, left, right):
    """A sum of K products, each rounded, in any order: off by at most K roundings of the sum of their sizes."""
    exact, sizes = left.double() @ right.double(), left.double().abs() @ right.double().abs()
    assert found.shape == exact.shape
    assert ((found - exact).abs() <= left.shape[-1] * EPSILON * sizes).all()


@needs_onednn
@pytest.mark.parametrize("left", ["rows", "columns", "apart"])
@pytest.mark.parametrize("right", ["rows", "columns", "apart"])
def test_products_are_right_however_the_matrices_lie(onednn, left, right):
    """Those whose right one is not in one piece go to MKL, as oneDNN multiplies them number by number."""

    def matrices(layout, rows, columns, seed):
        if layout == "columns":
            return normal(3, columns, rows, seed=seed).transpose(1, 2)
        return normal(3, rows, columns, seed=seed) if layout == "rows" else normal(rows, 3, columns).transpose(0, 1)

    a, b = matrices(left, 5, 40, 0), matrices(right, 40, 7, 1)
    require_product(matmul.bmm(a, b), a, b)
    require_product(matmul.mm(a[1], b[1]), a[1], b[1])
    row = torch.arange(7.0)
    torch.testing.assert_close(matmul.addmm(row, a[1], b[1]), row + a[1] @ b[1])
    out = torch.empty(7, 5).t()
    assert matmul.mm(a[2], b[2], out=out) is out
    require_product(out, a[2], b[2])
    assert len(onednn) == (0 if right == "apart" else 3 + 3)


@needs_onednn
@pytest.mark.parametrize("processor", [True, False])
def test_products_replace_what_is_there_or_are_added_to_it(onednn, monkeypatch, processor):
    monkeypatch.setattr(matmul, "prefers_onednn_for_batches", lambda: processor)
    left, right = normal(3, 40, 5).transpose(1, 2), normal(3, 40, 7, seed=1)
    out = torch.full((3, 5, 7), torch.nan)
    matmul.bmm_into(out, left, right, add=False)
    require_product(out, left, right)
    matmul.bmm_into(out, left, right, add=True)
    require_product(out / 2, left, right)
    assert len(onednn) == 6 * processor


@needs_onednn
def test_what_has_derivatives_other_numbers_or_no_numbers_does_not_go_to_onednn(onednn):
    a, b = normal(4, 6), normal(6, 5)
    matmul.mm(a.double(), b.double())
    matmul.mm(a.bfloat16(), b.bfloat16())
    matmul.mm(a[:0], b)
    gradient = torch.autograd.grad(matmul.mm(a.requires_grad_(), b).sum(), a)[0]
    torch.testing.assert_close(gradient, b.sum(1).expand(4, 6))
    with FakeTensorMode(allow_non_fake_inputs=True) as fake:
        matmul.mm(fake.from_tensor(normal(4, 6)), fake.from_tensor(b))
    assert onednn == []
    matmul.mm(a.detach(), b)
    assert onednn == [((4, 6), (6, 5))]


@needs_onednn
@pytest.mark.parametrize("rescaling", list(Rescaling))
@pytest.mark.parametrize("method", [IM2COL, WINOGRAD, WINOGRAD2], ids=lambda method: method.name)
def test_convolutions_and_their_derivatives_are_those_without_it(method, rescaling, monkeypatch, onednn):
    x, kernel, bias = normal(2, 24, 8, 8), normal(16, 24, 3, 3, seed=1), normal(16, seed=2)

    def derivatives():
        images, weight = x.clone().requires_grad_(), kernel.clone().requires_grad_()
        result = convolution(images, method.transform(weight, rescaling, 0.1), bias, method, rescaling)
        first = torch.autograd.grad(result.square().sum(), images, create_graph=True)[0]
        return result.detach(), first.detach(), torch.autograd.grad(first.square().sum(), weight)[0]

    found, used = derivatives(), len(onednn)
    monkeypatch.setattr(matmul, "prefers_onednn", lambda: False)
    for ours, theirs in zip(found, derivatives(), strict=True):
        # Winograd's maps make each sum of 24 * 9 products some ten times as large as its result.
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * theirs.abs().max().item())
    assert used > 0
    assert len(onednn) == used


@needs_onednn
def test_a_dense_layer_and_its_derivatives_are_those_without_it(monkeypatch, onednn):
    x, kernel, bias = normal(6, 32), normal(20, 32, seed=1), normal(20, seed=2)

    def derivatives():
        images, weight = x.clone().requires_grad_(), kernel.clone().requires_grad_()
        result = convolution(images, weight, bias, MATMUL, Rescaling.same)
        return result.detach(), *torch.autograd.grad(result.square().sum(), (images, weight))

    found, used = derivatives(), len(onednn)
    monkeypatch.setattr(matmul, "prefers_onednn", lambda: False)
    for ours, theirs in zip(found, derivatives(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())
    assert (used, len(onednn)) == (3, 3)


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
    monkeypatch.setattr(matmul, "processor_facts", lambda: facts)
    monkeypatch.setattr(matmul, "prefers_onednn", matmul.prefers_onednn.__wrapped__)
    assert matmul.prefers_onednn() is single
    assert matmul.prefers_onednn_for_batches.__wrapped__() is batches
