"""3x3 convolutions with fewer multiplications: Winograd's F(4x4, 3x3), for wide layers on CPUs.

Linear maps transform each tile of 6x6 pixels, and each 3x3 kernel, to 36 numbers in Winograd's domain.  There, a
convolution is 36 matrix products, with a quarter of the usual multiplications.  Another linear map transforms the
products to 4x4 pixels of the result.  With fused nearest upsampling or box pooling, 25 of the 36 products suffice.
Shapes: N batch size, H height, W width, I input and O output feature maps, K numbers of the domain (36 or 25), T tiles.
Source: Lavin and Gray 2016, section 4; the fused forms are ours.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from math import ceil

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.ops.products import LinearMap, bmm, empty, mm, prefers_onednn

LARGE_MAP = 36  # oneDNN is faster than MKL if a transform's matrix has at least this many rows or columns
CHUNK = 2**21  # how many numbers in Winograd's domain are computed at a time: as many as fit into the CPU's cache

# Along one axis, PIXELS maps 6 pixels and TAPS maps 3 weights to Winograd's domain; RESULT maps products to 4 pixels.
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
DOUBLED = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 1, 0), (0, 0, 0, 1))  # 4 pixels become 6
HALVED = ((0.5, 0.5, 0, 0), (0, 0, 0.5, 0.5))  # pooling along one axis: 4 pixels become 2, each a mean of 2 neighbours
ALWAYS_0 = 2  # fused resampling skips this index of Winograd's domain: upsampling gives 0 there, pooling ignores it


@dataclass(frozen=True)
class Maps:
    """Matrices that map pixels and kernels to Winograd's domain, and the products of both back to pixels."""

    pixels: Tensor  # [K, window * window]
    taps: Tensor  # [K, 9]
    result: Tensor  # [outcome * outcome, K]
    window: int  # side of an input tile, in pixels
    stride: int  # distance between neighbouring input tiles, in pixels
    outcome: int  # side of an output tile, in pixels


@cache
def maps(rescaling: Rescaling, dtype: torch.dtype) -> Maps:
    """The matrices for a convolution that is fused with `rescaling`, computed in float64 and rounded to `dtype`."""
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
    """Multiply a kernel [O, I, 3, 3] by `scale`, and transform it to K numbers in Winograd's domain: [K, O, I]."""
    to_domain = maps(rescaling, kernel.dtype).taps * scale  # [K, 9]
    if prefers_onednn():  # oneDNN is fast only if the matrix is contiguous
        taps = kernel.permute(2, 3, 0, 1).reshape(9, -1)  # [9, O I], a copy
        in_domain: Tensor = LinearMap.apply(_map, _map_back, to_domain, taps)
        return in_domain.view(-1, *kernel.shape[:2])
    taps = kernel.permute(0, 2, 3, 1).flatten(1, 2)  # [O, 9, I], a view if the kernel is channels-last
    return torch.matmul(to_domain, taps).transpose(0, 1)


def _map(matrix: Tensor, columns: Tensor, row: Tensor | None = None) -> Tensor:
    if max(matrix.shape) >= LARGE_MAP:
        return mm(matrix, columns, row=row)
    return torch.mm(matrix, columns) if row is None else torch.addmm(row, matrix, columns)


def _map_back(matrix: Tensor, columns: Tensor) -> Tensor:
    return _map(matrix.t(), columns)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """Convolve `x` [N, I, H, W] with a `kernel` [K, O, I] from `transform_kernel`, and add `bias` [O]: [N, O, …]."""
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
    """The gradient of `convolve` with respect to `x`: [N, O, …] -> [N, I, H, W]."""
    m, (count, _, height, width) = maps(rescaling, gradient.dtype), gradient.shape
    result = empty(gradient, count, kernel.shape[2], height * m.stride // m.outcome, width * m.stride // m.outcome)
    for rows in _chunks(gradient, kernel, m.outcome):
        in_domain = bmm(_from_result(gradient[rows], m), kernel).flatten(1)  # [K, T I]
        _add_tiles(_map(m.pixels.t(), in_domain), result[rows], m)
    return result


def grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `convolve` with respect to `kernel`: [K, O, I], in Winograd's domain."""
    m = maps(rescaling, x.dtype)
    result = x.new_empty(len(m.taps), gradient.shape[1], x.shape[1])
    for rows in _chunks(x, result, m.stride):
        left, right = _from_result(gradient[rows], m).transpose(1, 2), _from_pixels(x[rows], m)
        bmm(left, right, out=result, add=rows.start > 0)
    return result


def _chunks(images: Tensor, kernel: Tensor, tile: int) -> Iterator[slice]:
    numbers = images[0, 0].numel() // tile**2 * len(kernel) * max(kernel.shape[1:])  # per image, in Winograd's domain
    numbers //= 2 if prefers_onednn() else 1  # with oneDNN, chunks of 2 * CHUNK numbers are faster
    size = ceil(len(images) / max(round(len(images) * numbers / CHUNK), 1))  # few chunks: each reads the whole kernel
    return (slice(start, start + size) for start in range(0, len(images), size))


def _from_pixels(x: Tensor, m: Maps) -> Tensor:
    """Transform features [N, I, H, W] to K numbers in Winograd's domain for each of T tiles: [K, T, I]."""
    padded = F.pad(x.permute(0, 2, 3, 1), (0, 0, 1, 1, 1, 1))
    tiles = padded.unfold(1, m.window, m.stride).unfold(2, m.window, m.stride)  # [N, rows, columns, I, window, window]
    pixels = tiles.permute(4, 5, 0, 1, 2, 3).reshape(m.window**2, -1)
    return _map(m.pixels, pixels).view(len(m.pixels), -1, x.shape[1])


def _from_result(gradient: Tensor, m: Maps) -> Tensor:
    """Transform the result's gradient [N, O, …] to K numbers in Winograd's domain for each of T tiles: [K, T, O]."""
    pixels = _result_tiles(gradient, m.outcome).reshape(m.outcome**2, -1)
    return _map(m.result.t(), pixels).view(len(m.pixels), -1, gradient.shape[1])


def _result_tiles(images: Tensor, side: int) -> Tensor:
    """View images [N, C, H, W] as tiles of side x side pixels: [side, side, N, H / side, W / side, C]."""
    height, width = images.shape[2:]
    parts = images.unflatten(2, (height // side, side)).unflatten(4, (width // side, side))  # type: ignore[no-untyped-call]
    return parts.permute(3, 5, 0, 2, 4, 1)  # type: ignore[no-any-return]


def _add_tiles(pixels: Tensor, images: Tensor, m: Maps) -> None:
    """Set `images` [N, I, H, W] to the sum of the overlapping tiles in `pixels` [window * window, T I]."""
    count, features, height, width = images.shape
    down, right, stride = height // m.stride, width // m.stride, m.stride
    tiles = pixels.view(m.window, m.window, count, down, right, features).permute(2, 3, 0, 4, 1, 5)
    parts = [slice(first, min(first + stride, m.window)) for first in range(0, m.window, stride)]
    more = len(parts) - 1  # a tile overlaps the next `more` tiles below and to the right
    padded = pixels.new_zeros(count, down + more, stride, right + more, stride, features)
    for i, rows in enumerate(parts):
        for j, columns in enumerate(parts):
            part = padded[:, i : i + down, : rows.stop - rows.start, j : j + right, : columns.stop - columns.start]
            part += tiles[:, :, rows, :, columns]
    whole = padded.view(count, height + more * stride, width + more * stride, features)
    images.copy_(whole[:, 1 : height + 1, 1 : width + 1].permute(0, 3, 1, 2))
