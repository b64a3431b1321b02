# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# ruff: noqa: ANN001, ANN201, ANN202, C901, PLR0912, PLR0917 - Triton accepts only its own annotations, and no keyword-only arguments
"""All Triton kernels; only `fused.launch` imports this file, because Triton is not installed everywhere.

Feature maps are channels-last: P pixels of C features.  A tile has ROWS pixels and COLUMNS features (C, rounded up to
a power of two).  Each of K Triton programs computes one or more tiles, in float32.
"""

import triton
import triton.language as tl


@triton.jit
def _tile(number, pixels, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = number * ROWS + tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    places = row.to(tl.int64)[:, None] * C + column[None, :]  # int64, because a tensor may have more than 2^31 elements
    inside = (row < pixels)[:, None] & (column < C)[None, :]
    return row, column, places, inside


@triton.jit(do_not_specialize=["pixels"])
def bias_act_forward(
    x, bias, y, scale, pixels,
    SLOPE: tl.constexpr, EPSILON: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Set y [P, C] to the leaky ReLU of x [P, C] + bias [C]; y may be the same memory as x.

    If scale [P] is given, also apply pixel norm, and set scale to pixel norm's factors.
    """
    row, column, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    z = tl.load(x + places, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        z += tl.load(bias + column, mask=column < C, other=0.0).to(tl.float32)[None, :]
    z = tl.where(z > 0, z, z * SLOPE)  # padding columns hold 0, so that they add nothing to pixel norm's mean square
    if scale is not None:
        s = tl.rsqrt(tl.sum(z * z, 1) / C + EPSILON)
        tl.store(scale + row, s, mask=row < pixels)
        z = z * s[:, None]
    tl.store(y + places, z, mask=inside)


@triton.jit(do_not_specialize=["pitch", "pixels", "tiles"])
def bias_act_backward(
    gradient, y, scale, result, sums, pitch, pixels, tiles,
    SLOPE: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The backward pass of `bias_act_forward`: set result [P, C] to the gradient of x, from y and y's gradient.

    Each program adds its part of the bias's gradient to one row of sums [K, C]; rows begin `pitch` numbers apart.
    With pixel norm, y = s * z (z: leaky ReLU), and dL/dz = s * (g - y * mean(g * y)) for g = dL/dy.
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
        g = tl.where(features > 0, g, g * SLOPE)  # y has the same sign as z, because pixel norm's factor is positive
        tl.store(result + places, g, mask=inside)
        total += g
    if sums is not None:
        column = tl.arange(0, COLUMNS)
        places = sums + program * pitch + column
        before = tl.load(places, mask=column < C, other=0.0)
        tl.store(places, before + tl.sum(total, 0), mask=column < C)


@triton.jit(do_not_specialize=["pixels"])
def blend(old, new, alpha, result, pixels, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Set result [P, C] to (1 - alpha) * old + alpha * new, exactly at alpha 0 and 1; alpha [] is a scalar tensor."""
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
    """Set for_old and for_new [P, C] to the gradients of old and new, from the gradient [P, C] of `blend`'s result."""
    _, _, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    a = tl.load(alpha)
    g = tl.load(gradient + places, mask=inside, other=0.0).to(tl.float32)
    tl.store(for_old + places, (1 - a) * g, mask=inside)
    tl.store(for_new + places, a * g, mask=inside)


@triton.jit
def _pixels(row, plane, image, pixel):
    return (row // plane).to(tl.int64) * image + row % plane * pixel


@triton.jit(do_not_specialize=["pixels"])
def widen(
    result, x, weight, bias, y, scale, plane, image, pixel, channel, maps_step, channel_step, pixels,
    SLOPE: tl.constexpr, CHANNELS: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Set result [P, C] to the 1x1 convolution of images x.  If a bias is given, add the bias and apply leaky ReLU.

    If y [P, C] is given, multiply the convolution by the derivative of the leaky ReLU whose result is y.
    """
    row, column, places, inside = _tile(tl.program_id(0), pixels, C, ROWS, COLUMNS)
    x += _pixels(row, plane, image, pixel)
    z = tl.zeros((ROWS, COLUMNS), tl.float32)
    for number in tl.static_range(CHANNELS):
        colour = tl.load(x + number * channel, mask=row < pixels, other=0.0).to(tl.float32)
        w = tl.load(weight + column * maps_step + number * channel_step, mask=column < C, other=0.0) * scale
        z += colour[:, None] * w[None, :]
    if bias is not None:
        z += tl.load(bias + column, mask=column < C, other=0.0)[None, :]
        z = tl.where(z > 0, z, z * SLOPE)
    if y is not None:
        z = tl.where(tl.load(y + places, mask=inside, other=0.0).to(tl.float32) > 0, z, z * SLOPE)
    tl.store(result + places, z, mask=inside)


@triton.jit
def _add_products(of_weight, of_bias, wide, x, valid):
    colour = tl.load(x, mask=valid, other=0.0).to(tl.float32)
    return of_weight + wide * colour[:, None], of_bias + colour


@triton.jit
def _add_to(memory, values, mask):
    tl.store(memory, tl.load(memory, mask=mask, other=0.0) + values, mask=mask)


@triton.jit(do_not_specialize=["pixels", "tiles", "pitch"])
def narrow(
    wide, y, weight, bias, x, result, of_weight, of_bias, scale, pitch,
    plane, image, pixel, channel, maps_step, channel_step, pixels, tiles,
    SLOPE: tl.constexpr, CHANNELS: tl.constexpr, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Set `result` to a 1x1 convolution of features `wide` [P, C] to images, compute parameter gradients, or do both.

    Each program adds its part of the gradients to its row of `of_weight` and `of_bias`.  An output of None is skipped.
    From-RGB's backward pass: x are the images, y [P, C] is the layer's output, and `wide` is the gradient of y.  `wide`
    is first multiplied by the derivative of leaky ReLU.  The bias's gradient is the sum of `wide`.
    To-RGB: y is None, `wide` is the input, and x is the gradient of the output.  The bias's gradient is the sum of x.
    """
    program, column = tl.program_id(0), tl.arange(0, COLUMNS)
    total_wide = tl.zeros((ROWS, COLUMNS), tl.float32)
    # w0, w1 and w2 add up `wide` times channel 0, 1 and 2 of x.  x0, x1 and x2 add up channel 0, 1 and 2 of x alone.
    w0, w1, w2 = total_wide, total_wide, total_wide
    x0, x1, x2 = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
    for tile in range(tiles):
        row, _, places, inside = _tile(program * tiles + tile, pixels, C, ROWS, COLUMNS)
        at, valid = _pixels(row, plane, image, pixel), row < pixels
        g = tl.load(wide + places, mask=inside, other=0.0).to(tl.float32)
        if y is not None:
            g = tl.where(tl.load(y + places, mask=inside, other=0.0).to(tl.float32) > 0, g, g * SLOPE)
        if result is not None:
            for number in tl.static_range(CHANNELS):
                w = tl.load(weight + column * maps_step + number * channel_step, mask=column < C, other=0.0) * scale
                colour = tl.sum(g * w[None, :], 1)
                if bias is not None:
                    colour += tl.load(bias + number)
                tl.store(result + at + number * channel, colour, mask=valid)
        if of_weight is not None:
            total_wide += g
            w0, x0 = _add_products(w0, x0, g, x + at, valid)
            if CHANNELS > 1:
                w1, x1 = _add_products(w1, x1, g, x + at + channel, valid)
            if CHANNELS > 2:
                w2, x2 = _add_products(w2, x2, g, x + at + 2 * channel, valid)
    if of_weight is not None:
        of_weight += program * pitch + column * maps_step
        _add_to(of_weight, tl.sum(w0, 0) * scale, column < C)
        if CHANNELS > 1:
            _add_to(of_weight + channel_step, tl.sum(w1, 0) * scale, column < C)
        if CHANNELS > 2:
            _add_to(of_weight + 2 * channel_step, tl.sum(w2, 0) * scale, column < C)
    if of_bias is not None:
        of_bias += program * pitch
        if y is not None:
            _add_to(of_bias + column, tl.sum(total_wide, 0), column < C)
        else:
            number = tl.arange(0, 4)
            sums = tl.where(number == 0, tl.sum(x0, 0), tl.where(number == 1, tl.sum(x1, 0), tl.sum(x2, 0)))
            _add_to(of_bias + number, sums, number < CHANNELS)


@triton.jit(do_not_specialize=["groups", "size", "numbers"])
def stddev(
    x, of_result, of_gradient, result, of_of_result, groups, size, numbers, EPSILON: tl.constexpr, BLOCK: tl.constexpr
):
    """Set `result` [N] to the minibatch stddev of x [N, numbers]; each program computes one group of images.

    Backward pass: if `of_result` [N], the stddev's gradient, is given, set `result` [N, numbers] to x's gradient.
    Double backward: if `of_gradient` [N, numbers], the gradient of the backward pass's result, is also given, set
    `result` to the gradient of x, and `of_of_result` [N] to the gradient of `of_result`.
    """
    first = tl.program_id(0) // groups * groups * size + tl.program_id(0) % groups
    factor, total = 0.0, tl.zeros((BLOCK,), tl.float32)
    if of_result is not None:
        for image in range(size):
            factor += tl.load(of_result + first + image * groups) / (numbers * size)
    for start in range(0, numbers, BLOCK):
        j = start + tl.arange(0, BLOCK)
        inside = j < numbers
        mean, variance = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        mean_w, along = tl.zeros((BLOCK,), tl.float32), tl.zeros((BLOCK,), tl.float32)
        for image in range(size):
            mean += tl.load(x + (first + image * groups) * numbers + j, mask=inside, other=0.0).to(tl.float32) / size
        for image in range(size):
            places = (first + image * groups) * numbers + j
            d = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - mean
            variance += d * d / size
            if of_gradient is not None:
                w = tl.load(of_gradient + places, mask=inside, other=0.0).to(tl.float32)
                mean_w += w / size
                along += w * d / size
        deviation = tl.sqrt(variance + EPSILON)
        if of_result is None:
            total += tl.where(inside, deviation, 0.0)
        else:
            total += along / deviation
            for image in range(size):
                places = (first + image * groups) * numbers + j
                d = tl.load(x + places, mask=inside, other=0.0).to(tl.float32) - mean
                if of_gradient is not None:
                    w = tl.load(of_gradient + places, mask=inside, other=0.0).to(tl.float32)
                    d = w - mean_w - d * along / (deviation * deviation)
                tl.store(result + places, factor * d / deviation, mask=inside)
    mean_of_all = tl.sum(total, 0) / numbers
    for image in range(size):
        if of_result is None:
            tl.store(result + first + image * groups, mean_of_all)
        if of_of_result is not None:
            tl.store(of_of_result + first + image * groups, mean_of_all)


# `table` has one row for each convolution kernel: the 14 integers of a `preparation.Transform`, then four offsets.
# Integers 14 and 16 of a row of `table`: index of the kernel's first Triton program in `prepare` and in `gradients`.
# Integers 15 and 17 of a row of `table`: where in memory the convolution kernel and the weight's gradient begin.
# `owners` has for each Triton program a row number of `table`.  A program computes BLOCK x BLOCK elements of one tap.

FIELDS = tl.constexpr(18)  # number of integers in each row of `table`


@triton.jit
def _block(tile, rows, columns, BLOCK: tl.constexpr):
    across, down = tl.cdiv(columns, BLOCK), tl.cdiv(rows, BLOCK)
    r = tile // across % down * BLOCK + tl.arange(0, BLOCK)
    return tile // (across * down), r, tile % across * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def _copies(source, row_places, column_places, y, x, copies, shift, taps, step, rows, columns):
    """Return one tile of the sum of `copies` * `copies` shifted copies of a weight, at the tap in row y, column x."""
    source += row_places[:, None] + column_places[None, :]
    inside, value = rows[:, None] & columns[None, :], tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for down in range(copies):
        for right in range(copies):
            row, column = y + shift - down, x + shift - right
            if (row >= 0) & (row < taps) & (column >= 0) & (column < taps):
                value += tl.load(source + (row * taps + column) * step, mask=inside, other=0.0)
    return value


@triton.jit
def _packed_copies(source, r, c, y, pack, k, pixels, stride, rows, columns, row_step, column_step, copies, taps, step):
    """Return one tile of a packed kernel (packed.py).  The tile's elements may come from different taps of a weight."""
    # Tap x connects pixel a of the smaller image (input or output) to pixel a * stride + x - 1 of the larger image.
    # The packed kernel covers three packs side by side.  In both images, pixel 0 is the first pixel of the middle pack.
    x = (1 - r // rows * stride)[:, None] + ((pack - 1) * pixels + c // columns)[None, :]
    inside = (r < k * rows)[:, None] & (c < pixels * columns)[None, :]
    source += (r % rows * row_step)[:, None] + (c % columns * column_step)[None, :]
    value = tl.zeros((r.shape[0], c.shape[0]), tl.float32)
    for number in range(copies * copies):
        row, column = x * 0 + y - number // copies, x - number % copies
        valid = inside & (row >= 0) & (row < taps) & (column >= 0) & (column < taps)
        value += tl.load(source + (row * taps + column) * step, mask=valid, other=0.0)
    return value


@triton.jit
def prepare(table, factors, owners, addresses, result, BLOCK: tl.constexpr):
    """Make convolution kernels (`result`) from the weights at the memory `addresses`: scale, cast and rearrange."""
    entry = tl.load(owners + tl.program_id(0))
    row = table + entry * FIELDS
    rows, columns, height, width = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    k, pixels, stride = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    copies, shift, taps = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
    origin, row_step, column_step, step = tl.load(row + 10), tl.load(row + 11), tl.load(row + 12), tl.load(row + 13)
    source = tl.load(addresses + entry).to(tl.pointer_type(tl.float32)) + origin
    tap, r, c = _block(tl.program_id(0) - tl.load(row + 14), k * rows, pixels * columns, BLOCK)
    y, x = tap // width, tap % width
    in0, in1, place0, place1 = r < k * rows, c < pixels * columns, r * row_step, c * column_step
    if pixels > 1:
        value = _packed_copies(
            source, r, c, y, x, k, pixels, stride, rows, columns, row_step, column_step, copies, taps, step
        )
    elif column_step == 1:
        value = _copies(source, place0, place1, y, x, copies, shift, taps, step, in0, in1)
    else:  # transpose the tile, so that neighbouring threads read neighbouring memory
        value = tl.trans(_copies(source, place1, place0, y, x, copies, shift, taps, step, in1, in0))
    places = ((r * height + y) * width + x)[:, None] * (pixels * columns) + c[None, :]
    value *= tl.load(factors + entry)
    tl.store(result + tl.load(row + 15) + places, value, mask=in0[:, None] & in1[None, :])


@triton.jit(do_not_specialize=["uses"])
def gradients(table, factors, owners, parts, result, uses, BLOCK: tl.constexpr):
    """Set `result` to the gradients of all weights.  `parts` has `uses` gradients of each kernel, to be added up."""
    entry = tl.load(owners + tl.program_id(0))
    row = table + entry * FIELDS
    rows, columns, height, width = tl.load(row), tl.load(row + 1), tl.load(row + 2), tl.load(row + 3)
    k, pixels, stride = tl.load(row + 4), tl.load(row + 5), tl.load(row + 6)
    copies, shift, taps = tl.load(row + 7), tl.load(row + 8), tl.load(row + 9)
    origin, row_step, column_step, step = tl.load(row + 10), tl.load(row + 11), tl.load(row + 12), tl.load(row + 13)
    tap, r, c = _block(tl.program_id(0) - tl.load(row + 16), rows, columns, BLOCK)
    parts += tl.load(row + 15).to(tl.int64) * uses
    inside = (r < rows)[:, None] & (c < columns)[None, :]
    value = tl.zeros((BLOCK, BLOCK), tl.float32)
    row_size = height * width * pixels * columns
    places = (r * row_size)[:, None] + c[None, :]
    for number in range(uses * k):
        for down in range(copies):
            for right in range(copies):
                y, x = tap // taps + down - shift, tap % taps + right - shift
                pixel = number % k * stride + x - 1 + pixels  # counted from the left pack's first pixel
                if (y >= 0) & (y < height) & (pixel >= 0) & (pixel < width * pixels):
                    at = parts + number * rows * row_size + (y * width * pixels + pixel) * columns
                    value += tl.load(at + places, mask=inside, other=0.0).to(tl.float32)
    value *= tl.load(factors + entry)
    result += tl.load(row + 17) + origin + tap * step
    if column_step == 1:
        tl.store(result + r[:, None] * row_step + c[None, :], value, mask=inside)
    else:
        tl.store(result + c[:, None] * column_step + r[None, :] * row_step, tl.trans(value), mask=tl.trans(inside))
