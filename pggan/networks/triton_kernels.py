# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: ANN001, ANN201, ANN202, PLR0917 - Triton reads annotations and takes only its own, and has no keywords
"""Triton kernels for what is limited by memory on CUDA: each reads and writes every number once.

Maps are seen in channels-last memory, as P pixels of C features, in tiles of ROWS pixels by COLUMNS features: C padded
to a power of two.  Arithmetic and sums are in float32.  `fused.py` alone imports this file: Triton is not everywhere.
P pixels, C features, K programs.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(number, pixels, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The pixels and the features of a tile, its numbers' places in memory, and which of these there are."""
    row, column = number * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    places = row.to(tl.int64)[:, None] * C + column[None, :]  # there may be more than 2^31 numbers
    inside = (row < pixels)[:, None] & (column < C)[None, :]
    return row, column, places, inside


@triton.jit(do_not_specialize=["pixels"])
def bias_act_forward(
    x, bias, y, scale, pixels,
    SLOPE: tl.constexpr, EPSILON: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The leaky ReLU y [P, C] of x [P, C] + bias [C], which may overwrite x; its pixel norm if there is a scale [P].

    The scale is set to what each pixel was multiplied by.
    """
    row, column, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    b = tl.load(bias + column, mask=column < C, other=0.0).to(tl.float32)
    z = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) + b[None, :]
    z = tl.where(z > 0, z, z * SLOPE)  # 0 in the columns beyond C
    if scale is not None:
        s = tl.rsqrt(tl.sum(z * z, 1) / C + EPSILON)
        tl.store(scale + row, s, mask=row < pixels)
        z = z * s[:, None]
    tl.store(y + places, z, mask=inside)


@triton.jit(do_not_specialize=["pixels", "tiles"])
def bias_act_backward(
    gradient, y, scale, result, sums, pixels, tiles,
    SLOPE: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of `bias_act_forward` in x, from y, its scale and y's gradient.

    sums [K, C]: of it, over `tiles` tiles each.

    With y = s * z, z the leaky ReLU, whose sign y has: dL/dz = s * (g - y * mean(g * y)).
    """
    program = tl.program_id(0)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for number in range(tiles):
        row, _, places, inside = _tile(program * tiles + number, pixels, C, ROWS, COLUMNS)
        g = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
        features = tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
        if scale is not None:
            s = tl.load(scale + row, mask=row < pixels, other=0.0)
            along = tl.sum(g * features, 1) / C
            g = (g - features * along[:, None]) * s[:, None]
        g = tl.where(features > 0, g, g * SLOPE)
        tl.store(result + places, g, mask=inside)
        total += g
    if sums is not None:
        column = tl.arange(0, COLUMNS)
        tl.store(sums + program * C + column, tl.sum(total, 0), mask=column < C)


@triton.jit(do_not_specialize=["pixels"])
def blend(old, new, alpha, result, pixels, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The blend: old [P, C] at an alpha [] of 0, new [P, C] at 1, both exactly."""
    _, _, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    a = tl.load(alpha)
    first = tl.load(old + places, mask=inside, other=0.0).to(tl.float32)
    last = tl.load(new + places, mask=inside, other=0.0).to(tl.float32)
    z = tl.where(a < 0.5, first + a * (last - first), last - (1 - a) * (last - first))
    tl.store(result + places, z, mask=inside)


@triton.jit(do_not_specialize=["pixels"])
def blend_backward(
    gradient, alpha, for_old, for_new, pixels, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """The shares of old and new in a gradient [P, C] of `blend`."""
    _, _, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    a = tl.load(alpha)
    g = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(for_old + places, (1 - a) * g, mask=inside)
    tl.store(for_new + places, a * g, mask=inside)


@triton.jit
def _neighbour(number: tl.constexpr, row, height, width):
    """How many pixels further in memory the `number`th of nine neighbours is, and where there is one."""
    down, right = number // 3 - 1, number % 3 - 1
    i, j = row // width % height + down, row % width + right
    return down * width + right, (i >= 0) & (i < height) & (j >= 0) & (j < width)


@triton.jit(do_not_specialize=["pixels", "height", "width"])
def bilateral_forward(
    x, y, total, pixels, height, width,
    FACTOR: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The mean y [P, C] of each pixel of x [P, C] and its neighbours, and the sum of their weights, total [P].

    The weight of a neighbour whose colour differs by d: exp(FACTOR * |d|^2).
    """
    row, _, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    here = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    pull, weights = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS,), tl.float32)
    for number in tl.static_range(9):
        further, exists = _neighbour(number, row, height, width)
        there = inside & exists[:, None]
        d = tl.load(x + places + further * C, mask=there, other=0.0).to(tl.float32)
        d = tl.where(there, d - here, 0.0)
        w = tl.where(exists, tl.exp(tl.sum(d * d, 1) * FACTOR), 0.0)
        pull += d * w[:, None]
        weights += w
    tl.store(y + places, here + pull / weights[:, None], mask=inside)
    tl.store(total + row, weights, mask=row < pixels)


@triton.jit(do_not_specialize=["pixels", "height", "width"])
def bilateral_backward(
    x, gradient, y, total, result, pixels, height, width,
    FACTOR: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The gradient of `bilateral_forward` in x, from all of it and y's gradient.

    A weight belongs to both of its pixels: each program sums what reaches its own.
    """
    row, _, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    here = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    g = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    mean = tl.load(y + places, mask=inside, other=0.0).to(tl.float32)
    of_pull = g / tl.load(total + row, mask=row < pixels, other=1.0)[:, None]
    of_total = tl.sum(of_pull * (here - mean), 1)
    for number in tl.static_range(9):
        further, exists = _neighbour(number, row, height, width)
        there = inside & exists[:, None]
        other = tl.load(x + places + further * C, mask=there, other=0.0).to(tl.float32)
        its_gradient = tl.load(gradient + places + further * C, mask=there, other=0.0).to(tl.float32)
        its_mean = tl.load(y + places + further * C, mask=there, other=0.0).to(tl.float32)
        its_total = tl.load(total + row + further, mask=exists & (row < pixels), other=1.0)
        its_pull = its_gradient / its_total[:, None]
        d = tl.where(there, other - here, 0.0)
        w = tl.where(exists, tl.exp(tl.sum(d * d, 1) * FACTOR), 0.0)
        of_d = of_pull - its_pull
        of_w = tl.sum(of_d * d, 1) + of_total + tl.sum(its_pull * (other - its_mean), 1)
        g -= (of_d + d * (2 * FACTOR * of_w)[:, None]) * w[:, None]
    tl.store(result + places, g, mask=inside)
