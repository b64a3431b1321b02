# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: ANN001, ANN201, ANN202, PLR0917 - Triton accepts only its own annotations, and no keyword-only arguments
"""Triton kernels that prepare all kernels of a network in one launch, and compute the gradients of their weights.

A row of `table` describes how one kernel follows from its weight: the fields of `preparation.Transform`, and where the
tiles and numbers of this kernel begin.  A program computes BLOCK x BLOCK numbers of one tap.  `owners` has the row of
each program.  Arithmetic is in float32.  Only `preparation.py` imports this file.
"""

import triton
import triton.language as tl

FIELDS = tl.constexpr(18)  # numbers in a row of `table`


@triton.jit
def _tile(tile, rows, columns, BLOCK: tl.constexpr):
    """The tap of tile number `tile` of a kernel, and the indices of the tile's rows and columns."""
    across, down = tl.cdiv(columns, BLOCK), tl.cdiv(rows, BLOCK)
    r = tile // across % down * BLOCK + tl.arange(0, BLOCK)
    return tile // (across * down), r, tile % across * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _copies(source, x0, x1, y, place0, place1, inside0, inside1, copies, shift, taps, step):
    """The sum of shifted copies of a weight, at taps (y, x0 + x1) and memory offsets place0 + place1."""
    value = tl.zeros((x0.shape[0], x1.shape[0]), tl.float32)
    x, inside = x0[:, None] + x1[None, :], inside0[:, None] & inside1[None, :]
    for number in range(copies * copies):
        row, column = x * 0 + y + shift - number // copies, x + shift - number % copies
        valid = inside & (row >= 0) & (row < taps) & (column >= 0) & (column < taps)
        places = place0[:, None] + place1[None, :] + (row * taps + column) * step
        value += tl.load(source + places, mask=valid, other=0.0)
    return value


@triton.jit
def prepare(table, factors, owners, addresses, result, BLOCK: tl.constexpr):
    """Set all kernels in `result`, each from the weight at its address in `addresses`, times its factor."""
    entry = tl.load(owners + tl.program_id(0))
    row = table + entry * FIELDS
    rows, columns, height, width = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    k, pixels, stride = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    copies, shift, taps = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
    origin, row_step, column_step = tl.load(row + 10), tl.load(row + 11), tl.load(row + 12)
    step, source = tl.load(row + 13), tl.load(addresses + entry).to(tl.pointer_type(tl.float32)) + origin
    tap, r, c = _tile(tl.program_id(0) - tl.load(row + 14), k * rows, pixels * columns, BLOCK)
    y, pack = tap // width, tap % width
    # Tap x of pixel a in a small pack reads a pixel b of a large pack: (pack - 1) * pixels + b = a * stride + x - 1.
    x0, x1 = 1 - r // rows * stride, (pack - 1) * pixels + c // columns
    place0, place1 = r % rows * row_step, c % columns * column_step
    in0, in1 = r < k * rows, c < pixels * columns
    if column_step == 1:
        value = _copies(source, x0, x1, y, place0, place1, in0, in1, copies, shift, taps, step)
    else:  # neighbouring threads read neighbouring numbers of a column
        value = tl.trans(_copies(source, x1, x0, y, place1, place0, in1, in0, copies, shift, taps, step))
    places = ((r * height + y) * width + pack)[:, None] * (pixels * columns) + c[None, :]
    value *= tl.load(factors + entry)
    tl.store(result + tl.load(row + 15) + places, value, mask=in0[:, None] & in1[None, :])


@triton.jit(do_not_specialize=["uses"])
def gradients(table, factors, owners, parts, result, uses, BLOCK: tl.constexpr):
    """Set the gradients of all weights in `result`; `parts` has the gradients of each kernel from all `uses`."""
    entry = tl.load(owners + tl.program_id(0))
    row = table + entry * FIELDS
    rows, columns, height, width = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    k, pixels, stride = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    copies, shift, taps = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
    origin, row_step, column_step = tl.load(row + 10), tl.load(row + 11), tl.load(row + 12)
    tap, r, c = _tile(tl.program_id(0) - tl.load(row + 16), rows, columns, BLOCK)
    parts += tl.load(row + 15).to(tl.int64) * uses
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    value = tl.zeros((BLOCK, BLOCK), tl.float32)
    for number in range(uses * k * copies * copies):
        use, a = number // (k * copies * copies), number // (copies * copies) % k
        y, x = r * 0 + tap // taps + number // copies % copies - shift, tap % taps + number % copies - shift
        pixel = c * 0 + a * stride + x - 1 + pixels  # in a row of packs
        at = ((((use * k + a) * rows + r) * height + y) * width * pixels)[:, None] + pixel[None, :]
        valid = inside & ((y >= 0) & (y < height))[:, None] & ((pixel >= 0) & (pixel < width * pixels))[None, :]
        at = at * columns + c[None, :]
        value += tl.load(parts + at, mask=valid, other=0.0).to(tl.float32)
    value *= tl.load(factors + entry)
    result += tl.load(row + 17) + origin + tap * tl.load(row + 13)
    if column_step == 1:
        tl.store(result + r[:, None] * row_step + c[None, :], value, mask=inside)
    else:
        tl.store(result + c[:, None] * column_step + r[None, :] * row_step, tl.trans(value), mask=tl.trans(inside))
