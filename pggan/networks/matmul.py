"""Products of matrices in float32 on CPUs: by oneDNN where MKL, which PyTorch uses, takes longer.

MKL uses AVX-512 on processors of Intel alone.  On others that calculate 512 bits at once, oneDNN reaches twice MKL's
rate; on others that take two steps for them, the same, and batches stay with MKL, which multiplies them in one call
(lab book).
"""

from functools import cache

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from pggan.core.cpu import processor_facts

INTEL, AMD = "GenuineIntel", "AuthenticAMD"
ZEN_5 = 26  # AMD's first family of processors that calculate 512 bits at once


@cache
def prefers_onednn() -> bool:
    """Whether products go to oneDNN on this machine: AVX-512 on a processor that is not Intel's."""
    facts = processor_facts()
    usable = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    usable = usable and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    return usable and facts["vendor_id"] not in ("", INTEL) and "avx512f" in facts["flags"].split()


@cache
def prefers_onednn_for_batches() -> bool:
    """Whether batched products go to oneDNN, too, one by one: where its rate makes up for the calls and a copy."""
    facts = processor_facts()
    in_two_steps = facts["vendor_id"] == AMD and int(facts["cpu family"] or 0) < ZEN_5
    return prefers_onednn() and not in_two_steps


def mm(left: Tensor, right: Tensor, out: Tensor | None = None) -> Tensor:
    """The product [M, K] x [K, N] -> [M, N], without derivatives where it is oneDNN's; written to `out` if given."""
    if not _for_onednn(left, right):
        return torch.mm(left, right, out=out)
    result = _onednn(left, right)
    return result if out is None else out.copy_(result)


def addmm(row: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """`row` [N] plus the product [M, K] x [K, N] -> [M, N], without derivatives where it is oneDNN's."""
    return _onednn(left, right, row) if _for_onednn(left, right) else torch.addmm(row, left, right)


def bmm(left: Tensor, right: Tensor) -> Tensor:
    """The products [B, M, K] x [B, K, N] -> [B, M, N], without derivatives where they are oneDNN's."""
    if not (prefers_onednn_for_batches() and _for_onednn(left, right)):
        return torch.bmm(left, right)
    result = left.new_empty(len(left), left.shape[1], right.shape[2])
    for one, a, b in zip(result.unbind(), left.unbind(), right.unbind(), strict=True):
        one.copy_(_onednn(a, b))
    return result


def bmm_into(out: Tensor, left: Tensor, right: Tensor, *, add: bool) -> None:
    """Set `out` [B, M, N] to the products [B, M, K] x [B, K, N], or `add` them to it."""
    if prefers_onednn_for_batches() and _for_onednn(left, right):
        for total, a, b in zip(out.unbind(), left.unbind(), right.unbind(), strict=True):
            product = _onednn(a, b)
            total.add_(product) if add else total.copy_(product)
    elif add:
        out.baddbmm_(left, right)
    else:
        torch.bmm(left, right, out=out)


def _onednn(left: Tensor, right: Tensor, row: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), row, "none", [], "")
    return result


def _for_onednn(left: Tensor, right: Tensor) -> bool:
    return (
        left.dtype == right.dtype == torch.float32
        and left.device.type == "cpu"
        and prefers_onednn()
        and not isinstance(left, FakeTensor)
        and not (torch.is_grad_enabled() and (left.requires_grad or right.requires_grad))
        and _is_dense(right)
        and left.numel() > 0 < right.numel()
    )


def _is_dense(matrices: Tensor) -> bool:
    """Whether each matrix [..., K, N] lies in one piece of memory, by rows or by columns."""
    (rows, columns), (down, right) = matrices.shape[-2:], matrices.stride()[-2:]
    return (right == 1 and down == columns) or (down == 1 and right == rows)
