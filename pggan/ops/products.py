"""Products of matrices on CPUs: dense layers, and 3x3 convolutions as one product each (im2col).

MKL, which PyTorch uses, has AVX-512 on processors of Intel alone.  On others that calculate 512 bits at once, oneDNN
reaches twice MKL's rate; on others that take two steps for them, the same, and batches stay with MKL, which multiplies
them in one call (docs/performance.md).

The window around each pixel becomes a row of one matrix, the kernel is the other.  Fused with pooling, windows are 4x4
pixels at stride 2; fused with upsampling, the convolution is the adjoint of that: images and results change places.
N batch, H and W sides, I and O feature maps, T windows in the batch, K numbers in one.
"""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.core.process import processor_facts

INTEL, AMD = "GenuineIntel", "AuthenticAMD"
ZEN_5 = 26  # AMD's first family of processors that calculate 512 bits at once


@cache
def prefers_onednn() -> bool:
    """Whether products go to oneDNN on this machine: AVX-512 on a processor that is not Intel's."""
    facts = processor_facts()
    usable = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return usable and facts["vendor_id"] not in ("", INTEL) and "avx512f" in facts["flags"].split()


@cache
def prefers_onednn_for_batches() -> bool:
    """Whether batched products go to oneDNN, too, one by one: where its rate makes up for the calls and a copy."""
    facts = processor_facts()
    in_two_steps = facts["vendor_id"] == AMD and int(facts["cpu family"] or 0) < ZEN_5
    return prefers_onednn() and not in_two_steps


def mm(left: Tensor, right: Tensor, out: Tensor | None = None, row: Tensor | None = None) -> Tensor:
    """The product [M, K] x [K, N], plus `row` [N] -> [M, N]; without derivatives where it is oneDNN's."""
    if not _for_onednn(left, right):
        return torch.mm(left, right, out=out) if row is None else torch.addmm(row, left, right)
    result = _onednn(left, right, row)
    return result if out is None else out.copy_(result)


def bmm(left: Tensor, right: Tensor, out: Tensor | None = None, *, add: bool = False) -> Tensor:
    """The products [B, M, K] x [B, K, N] -> [B, M, N], written to `out` or added to it; derivatives as of `mm`."""
    if not (prefers_onednn_for_batches() and _for_onednn(left, right)):
        return torch.baddbmm(out, left, right, out=out) if out is not None and add else torch.bmm(left, right, out=out)
    out = left.new_empty(len(left), left.shape[1], right.shape[2]) if out is None else out
    for total, a, b in zip(out.unbind(), left.unbind(), right.unbind(), strict=True):
        total.add_(_onednn(a, b)) if add else total.copy_(_onednn(a, b))
    return out


def _onednn(left: Tensor, right: Tensor, row: Tensor | None = None) -> Tensor:
    result: Tensor = torch.ops.mkldnn._linear_pointwise(left, right.t(), row, "none", [], "")
    return result


def _for_onednn(left: Tensor, right: Tensor) -> bool:
    return (
        left.dtype == right.dtype == torch.float32
        and left.device.type == "cpu"
        and prefers_onednn()
        and not (torch.is_grad_enabled() and (left.requires_grad or right.requires_grad))
        and _is_dense(right)
        and left.numel() > 0 < right.numel()
    )


def _is_dense(matrices: Tensor) -> bool:
    """Whether each matrix [..., K, N] lies in one piece of memory, by rows or by columns."""
    (rows, columns), (down, right) = matrices.shape[-2:], matrices.stride()[-2:]
    return (right == 1 and down == columns) or (down == 1 and right == rows)


def dense(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """The dense layer [N, I] -> [N, O] of a kernel [O, I]."""
    if x.device.type != "cpu":
        return F.linear(x, kernel, bias)
    # Up to 64 rows, MKL takes a third to nine tenths of the time in the other order.
    result = mm(x, kernel.t()) if prefers_onednn() else mm(kernel, x.t()).t().contiguous()
    return result if bias is None else result.add_(bias)


def dense_grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `dense` in `x`: [N, O] to [N, I]."""
    return mm(gradient, kernel)


def dense_grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `dense` in `kernel`: [O, I]."""
    return mm(gradient.t(), x)


def side_and_stride(rescaling: Rescaling) -> tuple[int, int]:
    """The side and the stride, in pixels, of the windows of a 3x3 kernel that is fused with the resampling."""
    return (3, 1) if rescaling is Rescaling.same else (4, 2)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """[N, I, H, W] to [N, O, …]; `kernel` [O, I, 3, 3], or as fused with the resampling; `bias` [O]."""
    if rescaling is Rescaling.up:
        result = _from_windows(mm(_pixels(x), _matrix(kernel)), x, rescaling)
    else:
        result = _multiply(_windows(x, rescaling), _matrix(kernel).t(), x, rescaling)
    return result if bias is None else result.add_(bias[:, None, None])


def grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `convolve` in `x`: [N, O, …] to [N, I, H, W]."""
    if rescaling is Rescaling.up:
        return _multiply(_windows(gradient, rescaling), _matrix(kernel).t(), gradient, rescaling)
    return _from_windows(mm(_pixels(gradient), _matrix(kernel)), gradient, rescaling)


def grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `convolve` in `kernel`."""
    small, large = (x, gradient) if rescaling is Rescaling.up else (gradient, x)
    side, _ = side_and_stride(rescaling)
    kernel = empty(x, small.shape[1], large.shape[1], side, side)
    mm(_pixels(small).t(), _windows(large, rescaling), out=_matrix(kernel))
    return kernel


def _matrix(kernel: Tensor) -> Tensor:
    """A kernel [A, B, side, side] as [A, K]; a view where its channels are side by side."""
    return kernel.permute(0, 2, 3, 1).flatten(1)


def _pixels(images: Tensor) -> Tensor:
    """[N, C, H, W] as [N H W, C]."""
    return images.permute(0, 2, 3, 1).flatten(0, 2)


def _windows(images: Tensor, rescaling: Rescaling) -> Tensor:
    """The windows of images [N, C, H, W], the first of which begins 1 pixel outside: [T, K]."""
    side, stride = side_and_stride(rescaling)
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    windows = padded.unfold(1, side, stride).unfold(2, side, stride)  # [N, …, …, C, side, side]
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(0, 2)


def empty(like: Tensor, *shape: int) -> Tensor:
    """Memory for images or kernels of `shape`, with the channels of a pixel side by side."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _multiply(windows: Tensor, matrix: Tensor, large: Tensor, rescaling: Rescaling) -> Tensor:
    """`windows` [T, K] of images `large` [N, …, H, W] times a `matrix` [K, C], as images [N, C, …]."""
    _, stride = side_and_stride(rescaling)
    result = empty(large, len(large), matrix.shape[1], large.shape[2] // stride, large.shape[3] // stride)
    mm(windows, matrix, out=_pixels(result))  # a result that is a view could not be activated in place
    return result


def _from_windows(windows: Tensor, small: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `_windows`: sums of the overlapping windows [T, K] of each pixel of `small` [N, …, h, w]."""
    count, (height, width), (side, stride) = len(small), small.shape[2:], side_and_stride(rescaling)
    windows = windows.view(count, height, width, side, side, -1)
    padded = windows.new_zeros(count, height * stride + 2, width * stride + 2, windows.shape[-1])
    for down in range(side):
        rows = slice(down, down + height * stride, stride)
        for right in range(side):
            padded[:, rows, right : right + width * stride : stride] += windows[:, :, :, down, right]
    return padded[:, 1:-1, 1:-1].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
