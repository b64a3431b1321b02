"""3x3 convolutions with fewer multiplications: Winograd's F(4x4, 3x3), for wide layers on CPUs.

Tiles of an image and the taps of a kernel are mapped to a small domain in which a convolution is one product of
matrices per number of the domain, 36 in all (6 per direction); the products are mapped back to 4x4 pixels, with a
quarter of the multiplications.  All maps are linear, so gradients take the same path backwards.
Fused with nearest upsampling or with box pooling, one of the 6 numbers is always 0 and is left out: 25 products.
N batch, H and W sides, I and O feature maps, K numbers of the domain, T tiles in the batch.
Source: Lavin and Gray 2016, section 4; the fused forms are ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.ops.products import bmm, empty, mm, prefers_onednn

LARGE_MAP = 36  # the larger side of a map from which oneDNN takes less time for it than MKL (docs/performance.md)
CHUNK = 2**21  # numbers in the domain that are processed at a time: they should stay in the cache

# In one direction: 6 pixels, or 3 taps, to 6 numbers of the domain; these to 4 pixels.
PIXELS = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
TAPS = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)
RESULT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
DOUBLED = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 1, 0), (0, 0, 0, 1))  # 4 pixels to 6
HALVED = ((0.5, 0.5, 0, 0), (0, 0, 0.5, 0.5))  # 4 pixels to 2
ALWAYS_0 = 2  # the number of the domain that doubled pixels don't have, and that halved results don't see


@dataclass(frozen=True)
class Maps:
    """The linear maps of one rescaling, for both directions at once."""

    pixels: Tensor  # [K, window * window]
    taps: Tensor  # [K, 9]
    result: Tensor  # [outcome * outcome, K]
    window: int  # side of the tile that is read
    stride: int  # from one tile to the next
    outcome: int  # side of the tile that is written


@cache
def maps(rescaling: Rescaling, dtype: torch.dtype) -> Maps:
    """The maps of `rescaling`, exact in float64 and then rounded to `dtype`."""
    pixels, taps, result = (torch.tensor(rows, dtype=torch.float64) for rows in (PIXELS, TAPS, RESULT))
    if rescaling is not Rescaling.same:
        kept = [number for number in range(len(pixels)) if number != ALWAYS_0]
        pixels, taps, result = pixels[kept], taps[kept], result[:, kept]
    if rescaling is Rescaling.up:
        pixels = pixels @ torch.tensor(DOUBLED, dtype=torch.float64)
    if rescaling is Rescaling.down:
        result = torch.tensor(HALVED, dtype=torch.float64) @ result
    window, outcome = pixels.shape[1], len(result)
    pixels, taps, result = (torch.kron(rows, rows).to(dtype) for rows in (pixels, taps, result))
    return Maps(pixels, taps, result, window=window, stride=window - 2, outcome=outcome)


def transform_kernel(kernel: Tensor, rescaling: Rescaling, scale: float) -> Tensor:
    """A kernel [O, I, 3, 3] times `scale` in the domain: [K, O, I]; the numbers of an output are side by side."""
    to_domain = maps(rescaling, kernel.dtype).taps * scale  # [K, 9]
    if prefers_onednn():  # it needs dense matrices to be fast
        taps = kernel.permute(2, 3, 0, 1).reshape(9, -1)  # [9, O I], a copy
        return LinearMap.apply(to_domain, taps).view(-1, *kernel.shape[:2])  # type: ignore[no-any-return]
    taps = kernel.permute(0, 2, 3, 1).flatten(1, 2)  # [O, 9, I], in the order of memory
    return torch.matmul(to_domain, taps).transpose(0, 1)


def _map(matrix: Tensor, columns: Tensor, row: Tensor | None = None) -> Tensor:
    """The product [M, K] x [K, N], plus `row` [N]; small ones are faster by MKL even where oneDNN is for all others."""
    if max(matrix.shape) >= LARGE_MAP:
        return mm(matrix, columns, row=row)
    return torch.mm(matrix, columns) if row is None else torch.addmm(row, matrix, columns)


class LinearMap(torch.autograd.Function):
    """The product of a matrix [M, K] that never changes with columns [K, N], and its derivatives in these."""

    @staticmethod
    def forward(ctx: Any, matrix: Tensor, columns: Tensor) -> Tensor:
        ctx.save_for_backward(matrix)
        return _map(matrix, columns)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:
        return None, LinearMap.apply(ctx.saved_tensors[0].t(), gradient)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """[N, I, H, W] to [N, O, …]; `kernel` [K, O, I] is in the domain, `bias` [O]."""
    m, outputs, (count, _, height, width) = maps(rescaling, x.dtype), kernel.shape[1], x.shape
    result = empty(x, count, outputs, height * m.outcome // m.stride, width * m.outcome // m.stride)
    for rows in _chunks(x, kernel, m.stride):
        in_domain = bmm(_from_pixels(x[rows], m), kernel.transpose(1, 2)).flatten(1)  # [K, T O]
        row = None if bias is None else bias.repeat(in_domain.shape[1] // outputs)
        pixels = _map(m.result, in_domain, row)
        tiles = _result_tiles(result[rows], m.outcome)
        tiles.copy_(pixels.view(tiles.shape))
    return result


def grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `convolve` in `x`: [N, O, …] to [N, I, H, W]."""
    m, (count, _, height, width) = maps(rescaling, gradient.dtype), gradient.shape
    result = empty(gradient, count, kernel.shape[2], height * m.stride // m.outcome, width * m.stride // m.outcome)
    for rows in _chunks(gradient, kernel, m.outcome):
        in_domain = bmm(_from_result(gradient[rows], m), kernel).flatten(1)  # [K, T I]
        _add_tiles(_map(m.pixels.t(), in_domain), result[rows], m)
    return result


def grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `convolve` in `kernel`: [K, O, I]."""
    m = maps(rescaling, x.dtype)
    result = x.new_empty(len(m.taps), gradient.shape[1], x.shape[1])
    for rows in _chunks(x, result, m.stride):
        left, right = _from_result(gradient[rows], m).transpose(1, 2), _from_pixels(x[rows], m)
        bmm(left, right, out=result, add=rows.start > 0)
    return result


def _chunks(images: Tensor, kernel: Tensor, tile: int) -> Iterator[slice]:
    numbers = images[0, 0].numel() // tile**2 * len(kernel) * max(kernel.shape[1:])  # in the domain, per image
    numbers //= 2 if prefers_onednn() else 1  # chunks of twice the size were the fastest there
    size = ceil(len(images) / max(round(len(images) * numbers / CHUNK), 1))  # as equal as can be: each reads the kernel
    return (slice(start, start + size) for start in range(0, len(images), size))


def _from_pixels(x: Tensor, m: Maps) -> Tensor:
    """[N, I, H, W] to the domain [K, T, I], in tiles that overlap by 2 pixels and begin 1 pixel outside."""
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))  # [N, H + 2, W + 2, I]
    tiles = padded.unfold(1, m.window, m.stride).unfold(2, m.window, m.stride)  # [N, …, …, I, window, window]
    pixels = tiles.permute(4, 5, 0, 1, 2, 3).reshape(m.window**2, -1)
    return _map(m.pixels, pixels).view(len(m.pixels), -1, x.shape[1])


def _from_result(gradient: Tensor, m: Maps) -> Tensor:
    """[N, O, …] to the domain [K, T, O]."""
    pixels = _result_tiles(gradient, m.outcome).reshape(m.outcome**2, -1)
    return _map(m.result.t(), pixels).view(len(m.pixels), -1, gradient.shape[1])


def _result_tiles(images: Tensor, side: int) -> Tensor:
    """[N, C, H, W] seen as tiles [side, side, N, H / side, W / side, C]."""
    height, width = images.shape[2:]
    parts = images.unflatten(2, (height // side, side)).unflatten(4, (width // side, side))  # type: ignore[no-untyped-call]
    return parts.permute(3, 5, 0, 2, 4, 1)  # type: ignore[no-any-return]


def _add_tiles(pixels: Tensor, images: Tensor, m: Maps) -> None:
    """Set `images` [N, I, H, W] to the sums of the tiles [window * window, T I] that overlap at each pixel."""
    count, features, height, width = images.shape
    down, right, stride = height // m.stride, width // m.stride, m.stride
    tiles = pixels.view(m.window, m.window, count, down, right, features).permute(2, 3, 0, 4, 1, 5)
    parts = [slice(first, min(first + stride, m.window)) for first in range(0, m.window, stride)]
    more = len(parts) - 1  # tiles that reach into the next ones
    padded = pixels.new_zeros(count, down + more, stride, right + more, stride, features)
    for i, rows in enumerate(parts):
        for j, columns in enumerate(parts):
            part = padded[:, i : i + down, : rows.stop - rows.start, j : j + right, : columns.stop - columns.start]
            part += tiles[:, :, rows, :, columns]
    whole = padded.view(count, height + more * stride, width + more * stride, features)
    images.copy_(whole[:, 1 : height + 1, 1 : width + 1].permute(0, 3, 1, 2))
