"""3x3 convolutions as one product of matrices each (im2col): for small images of wide layers on CPUs.

The window around each pixel becomes a row of one matrix, the kernel is the other.  Fused with pooling, windows are 4x4
pixels at stride 2; fused with upsampling, the convolution is the adjoint of that: images and results change places.
N batch, H and W sides, I and O feature maps, T windows in the batch, K numbers in one.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.networks.matmul import mm


def side_and_stride(rescaling: Rescaling) -> tuple[int, int]:
    """The side and the stride, in pixels, of the windows of a 3x3 kernel that is fused with the resampling."""
    return (3, 1) if rescaling is Rescaling.same else (4, 2)


def windows_size(x: Tensor, outputs: int, rescaling: Rescaling) -> int:
    """Numbers in the matrix of windows of images `x` [N, I, H, W], or of results with `outputs` where these are cut."""
    count, inputs, height, width = x.shape
    side, stride = side_and_stride(rescaling)
    if rescaling is Rescaling.up:
        return count * height * width * side**2 * outputs
    return count * (height // stride) * (width // stride) * side**2 * inputs


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
    kernel = _empty(x, small.shape[1], large.shape[1], side, side)
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


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _multiply(windows: Tensor, matrix: Tensor, large: Tensor, rescaling: Rescaling) -> Tensor:
    """`windows` [T, K] of images `large` [N, …, H, W] times a `matrix` [K, C], as images [N, C, …]."""
    _, stride = side_and_stride(rescaling)
    result = _empty(large, len(large), matrix.shape[1], large.shape[2] // stride, large.shape[3] // stride)
    mm(windows, matrix, out=_pixels(result))  # a result that is a view could not be activated in place
    return result


def _from_windows(windows: Tensor, small: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `_windows`: sums of the overlapping windows [T, K] of each pixel of `small` [N, …, h, w].

    Windows in half precision are added up in float32, so that the sum is rounded once.
    """
    count, (height, width), (side, stride) = len(small), small.shape[2:], side_and_stride(rescaling)
    windows = windows.view(count, height, width, side, side, -1)
    wide = torch.promote_types(windows.dtype, torch.float32)
    padded = windows.new_zeros(count, height * stride + 2, width * stride + 2, windows.shape[-1], dtype=wide)
    for down in range(side):
        rows = slice(down, down + height * stride, stride)
        for right in range(side):
            padded[:, rows, right : right + width * stride : stride] += windows[:, :, :, down, right]
    images = padded[:, 1:-1, 1:-1].permute(0, 3, 1, 2)
    return images.to(windows.dtype).contiguous(memory_format=torch.channels_last)
