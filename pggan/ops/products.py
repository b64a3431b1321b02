"""Matrix products on CPUs: dense layers, and 3x3 convolutions as one matrix product each (im2col).

PyTorch multiplies matrices with MKL, which uses AVX-512 only on Intel's processors.  On other processors with AVX-512,
this file calls oneDNN, which is up to twice as fast (docs/decisions.md).

In im2col, each pixel's window becomes a row of one matrix; the kernel is the other matrix.  Fused pooling needs windows
of 4x4 pixels at stride 2.  A convolution with fused upsampling is the adjoint of a convolution with fused pooling.
Shapes: N batch size, H height, W width, I input and O output feature maps, T windows in a batch, K numbers per window.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.core.process import processor_facts

INTEL, AMD = "GenuineIntel", "AuthenticAMD"
ZEN_5 = 26  # AMD's first processor family that calculates 512 bits in one step


@cache
def prefers_onednn() -> bool:
    """Whether oneDNN is faster than MKL: true on processors with AVX-512 that are not made by Intel."""
    facts = processor_facts()
    usable = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return usable and facts["vendor_id"] not in ("", INTEL) and "avx512f" in facts["flags"].split()


@cache
def prefers_onednn_for_batches() -> bool:
    """Whether oneDNN is faster than MKL even for batched products, for which oneDNN needs one call per matrix."""
    facts = processor_facts()
    in_two_steps = facts["vendor_id"] == AMD and int(facts["cpu family"] or 0) < ZEN_5
    return prefers_onednn() and not in_two_steps


def mm(left: Tensor, right: Tensor, out: Tensor | None = None, row: Tensor | None = None) -> Tensor:
    """The matrix product [M, K] x [K, N] -> [M, N], plus `row` [N] if given."""
    if not _for_onednn(left, right):
        return torch.mm(left, right, out=out) if row is None else torch.addmm(row, left, right)
    result = _onednn(left, right, row)
    return result if out is None else out.copy_(result)


def bmm(left: Tensor, right: Tensor, out: Tensor | None = None, *, add: bool = False) -> Tensor:
    """The batched product [B, M, K] x [B, K, N] -> [B, M, N], written to `out` or, if `add` is true, added to `out`."""
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
    """Whether each matrix [..., K, N] is contiguous in memory, by rows or by columns."""
    (rows, columns), (down, right) = matrices.shape[-2:], matrices.stride()[-2:]
    return (right == 1 and down == columns) or (down == 1 and right == rows)


class LinearMap(torch.autograd.Function):
    """Computes `function(constant, *x)`, which has to be linear in the tensors x.  Supports gradients of any order.

    `adjoint(constant, *gradients)` returns the gradients of x.
    """

    @staticmethod
    def forward(ctx: Any, function: Any, adjoint: Any, constant: Tensor, *x: Tensor) -> Any:
        result = function(constant, *x)
        ctx.save_for_backward(constant)
        ctx.functions = adjoint, function
        ctx.set_materialize_grads(isinstance(result, tuple))  # with several results, missing gradients become zeros
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        if gradients[0] is None:
            return (None,) * len(ctx.needs_input_grad)
        found = LinearMap.apply(*ctx.functions, *ctx.saved_tensors, *gradients)
        return None, None, None, *(found if isinstance(found, tuple) else (found,))


def dense(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """Apply a dense layer with weights `kernel` [O, I] and `bias` [O] to `x`: [N, I] -> [N, O]."""
    if x.device.type != "cpu":
        return F.linear(x, kernel, bias)
    # For batches of up to 64, MKL computes the transposed product in 1/3 to 9/10 of the time of the direct product.
    result = mm(x, kernel.t()) if prefers_onednn() else mm(kernel, x.t()).t().contiguous()
    return result if bias is None else result.add_(bias)


def dense_grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `dense` with respect to `x`: [N, O] -> [N, I]."""
    return mm(gradient, kernel)


def dense_grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `dense` with respect to `kernel`: [O, I]."""
    return mm(gradient.t(), x)


def side_and_stride(rescaling: Rescaling) -> tuple[int, int]:
    """The side and stride, in pixels, of the windows of a 3x3 convolution that is fused with `rescaling`."""
    return (3, 1) if rescaling is Rescaling.same else (4, 2)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """Convolve `x` [N, I, H, W] with a `kernel` from `fuse_resampling`, and add `bias` [O]; returns [N, O, …]."""
    if rescaling is Rescaling.up:
        result = _from_windows(mm(_pixels(x), _matrix(kernel)), x, rescaling)
    else:
        result = _multiply(_windows(x, rescaling), _matrix(kernel).t(), x, rescaling)
    return result if bias is None else result.add_(bias[:, None, None])


def grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `convolve` with respect to `x`: [N, O, …] -> [N, I, H, W]."""
    if rescaling is Rescaling.up:
        return _multiply(_windows(gradient, rescaling), _matrix(kernel).t(), gradient, rescaling)
    return _from_windows(mm(_pixels(gradient), _matrix(kernel)), gradient, rescaling)


def grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `convolve` with respect to `kernel`, in the kernel's shape."""
    small, large = (x, gradient) if rescaling is Rescaling.up else (gradient, x)
    side, _ = side_and_stride(rescaling)
    kernel = empty(x, small.shape[1], large.shape[1], side, side)
    mm(_pixels(small).t(), _windows(large, rescaling), out=_matrix(kernel))
    return kernel


def _matrix(kernel: Tensor) -> Tensor:
    """Convert a kernel [A, B, side, side] to a matrix [A, side * side * B], a view if the kernel is channels-last."""
    return kernel.permute(0, 2, 3, 1).flatten(1)


def _pixels(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).flatten(0, 2)


def _windows(images: Tensor, rescaling: Rescaling) -> Tensor:
    """im2col: return a matrix [T, K] whose rows are the T windows of padded images [N, C, H, W]."""
    side, stride = side_and_stride(rescaling)
    padded = F.pad(images.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    windows = padded.unfold(1, side, stride).unfold(2, side, stride)  # [N, window rows, window columns, C, side, side]
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(0, 2)


def empty(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised channels-last tensor of `shape`, with the type and device of `like`."""
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _multiply(windows: Tensor, matrix: Tensor, large: Tensor, rescaling: Rescaling) -> Tensor:
    _, stride = side_and_stride(rescaling)
    result = empty(large, len(large), matrix.shape[1], large.shape[2] // stride, large.shape[3] // stride)
    mm(windows, matrix, out=_pixels(result))  # `out=`, as in-place activations can't overwrite a view of `mm`'s result
    return result


def _from_windows(windows: Tensor, small: Tensor, rescaling: Rescaling) -> Tensor:
    """col2im, the adjoint of `_windows`: add up overlapping windows [T, K] to images."""
    count, (height, width), (side, stride) = len(small), small.shape[2:], side_and_stride(rescaling)
    windows = windows.view(count, height, width, side, side, -1)
    padded = windows.new_zeros(count, height * stride + 2, width * stride + 2, windows.shape[-1])
    for down in range(side):
        rows = slice(down, down + height * stride, stride)
        for right in range(side):
            padded[:, rows, right : right + width * stride : stride] += windows[:, :, :, down, right]
    return padded[:, 1:-1, 1:-1].permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
