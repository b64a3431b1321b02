"""Launches Triton kernels for activations, pixel norm, the fade between resolutions, and minibatch stddev.

Each kernel passes over memory once.  Shapes: N batch size, C features, H height, W width.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from math import ceil, inf
from subprocess import CalledProcessError
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.core.errors import StepFailed
from pggan.ops.convolution import Switches
from pggan.ops.products import LinearMap

LEAKY_SLOPE = 0.2  # slope of the leaky ReLU below 0 (paper Table 2)
EPSILON = 1e-8  # added under square roots, in pixel norm (paper section 4.2) and minibatch stddev
WIDEST = 1024  # largest number of features that these Triton kernels support: a tile holds all features of a pixel
TILE = 2048  # how many numbers a Triton program holds at a time: 16 per thread
IMAGE_TILE = 8192  # how many numbers a program of the kernel `stddev` holds at a time: 512 maps of 4x4 pixels
PROGRAMS = 512  # at most this many Triton programs sum over pixels: about 4 for each of an H200's 132 multiprocessors
REASON_WIDTH = 120  # messages quote at most this many characters of Triton's error

Rows = Callable[[], Tensor]  # returns a buffer [PROGRAMS, …]; Triton program i adds its part of a gradient to row i


@cache
def problem() -> str | None:
    """Why Triton kernels do not work on this machine; None if they work."""
    try:
        pixel_norm(torch.zeros(1, 8, device="cuda"))
    except StepFailed as error:
        return error.problem
    return None


def launch(name: str, programs: int, on: Tensor, *arguments: object, **constants: float) -> None:
    """Launch `programs` programs of the Triton kernel `name` on the GPU that holds `on`, the kernel's first argument.

    Raises StepFailed if Triton is missing or can't compile; training then continues with PyTorch's operations.
    """
    try:
        from pggan.ops import triton_kernels  # Triton is not installed everywhere

        with torch.cuda.device_of(on):  # type: ignore[no-untyped-call]
            # Triton 3.9 warns if `enable_fp_fusion` is not set, because the default will change.
            getattr(triton_kernels, name)[(programs,)](on, *arguments, **constants, enable_fp_fusion=True)
    except Exception as error:
        text = (str(error) or type(error).__name__).strip().splitlines()[0]
        if text.startswith("Triton Error [CUDA]"):  # the GPU failed (for example, out of memory), not Triton
            raise
        if isinstance(error, CalledProcessError) or "C compiler" in text:
            text = "Triton needs a C compiler and Python's headers (apt-get install gcc python3-dev)"
        text = f"The Triton kernel {name} fails: {shorten(text, REASON_WIDTH, placeholder=' …')}."
        remedy = "Train with compute.kernels=reference. Other commands need device=cpu."
        raise StepFailed(text, remedy, {"kernels": "reference"}) from error


def launch_tiles(name: str, x: Tensor, *others: object, most: float | None = None, **constants: float) -> None:
    """Launch the Triton kernel `name` on channels-last `x` [N, C, …], in at most `most` programs (None: no limit)."""
    columns = 1 << (x.shape[1] - 1).bit_length()  # C, rounded up to a power of two
    rows, pixels = max(TILE // columns, 1), x.numel() // x.shape[1]
    tiles = ceil(pixels / rows)
    each = 1 if most is None else max(ceil(tiles / most), 1)
    sizes = (pixels,) if most is None else (pixels, each)
    tile = {"C": x.shape[1], "ROWS": rows, "COLUMNS": columns}
    launch(name, ceil(tiles / each), x, *others, *sizes, **constants, **tile)


def dense(x: Tensor) -> Tensor:
    """Return `x` [N, C, H, W] or [N, C] in channels-last memory; `x` is copied only if necessary."""
    return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format)


def bias_act_norm_(x: Tensor, bias: Tensor) -> Tensor:
    """Overwrite `x` with the pixel norm of the leaky ReLU of `x` + `bias`; return pixel norm's factors [N, 1, H, W]."""
    y, scale = dense(x), x.new_empty(len(x), 1, *x.shape[2:], dtype=torch.float32)
    launch_tiles("bias_act_forward", y, bias, y, scale, SLOPE=LEAKY_SLOPE, EPSILON=EPSILON)
    if y is not x:
        x.copy_(y)
    return scale


def pixel_norm(x: Tensor) -> Tensor:
    """The pixel norm of `x` [N, C]; autograd can't differentiate it."""
    y, scale = torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)
    launch_tiles("bias_act_forward", x.contiguous(), None, y, scale, SLOPE=1.0, EPSILON=EPSILON)
    return y


class PixelSums:
    """Sums gradients over pixels in a fixed order: each Triton program has a row; the method `take` adds up rows."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters, self.used = parameters, set[int]()
        self.sizes = [parameter.numel() for parameter in parameters]
        self.memory: Tensor | None = None  # [PROGRAMS, sum of sizes]

    def rows(self, number: int) -> Tensor:
        """The buffer [PROGRAMS, size] in which Triton adds up the gradient of `self.parameters[number]`."""
        if self.memory is None:
            self.memory = torch.zeros(PROGRAMS, sum(self.sizes), device=self.parameters[0].device)
        self.used.add(number)
        return torch.split(self.memory, self.sizes, 1)[number]

    def take(self, others: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Add the rows of `memory` to the gradients `others`, which autograd has computed, and return the sums."""
        totals = () if self.memory is None else torch.split(self.memory.sum(0), self.sizes)
        found = list(others)
        for number in self.used:
            parameter, other = self.parameters[number], others[number]
            total = totals[number].as_strided(parameter.shape, parameter.stride())
            found[number] = total if other is None else total + other
        self.memory, self.used = None, set()
        return found


def bias_act_backward(y: Tensor, gradient: Tensor, scale: Tensor | None = None, rows: Tensor | None = None) -> Tensor:
    """The gradient of x in `BiasAct` or, given `scale`, `bias_act_norm_`.  Adds the bias gradient to buffer `rows`."""
    gradient, y = dense(gradient), dense(y)
    result = torch.empty_like(gradient)
    pitch, most = (0, inf) if rows is None else (rows.stride(0), PROGRAMS)
    launch_tiles("bias_act_backward", gradient, y, scale, result, rows, pitch, most=most, SLOPE=LEAKY_SLOPE)
    return result


class BiasAct(torch.autograd.Function):
    """Leaky ReLU of x [N, C, …] + bias [C], differentiable twice.  `rows()` returns the bias gradient's buffer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, rows: Rows) -> Tensor:
        x = dense(x)
        y = torch.empty_like(x)
        launch_tiles("bias_act_forward", x, bias, y, None, SLOPE=LEAKY_SLOPE, EPSILON=0.0)
        ctx.save_for_backward(y)
        ctx.set_materialize_grads(False)
        ctx.rows = rows
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        if gradient is None:
            return None, None, None
        y = ctx.saved_tensors[0].detach()  # only the signs of y matter, so the derivative with respect to y is 0
        rows = ctx.rows() if ctx.needs_input_grad[1] and Switches.weight_gradients else None
        return LinearMap.apply(partial(bias_act_backward, rows=rows), bias_act_backward, y, gradient), None, None


def blend(alpha: Tensor, old: Tensor, new: Tensor) -> Tensor:
    """The blend (1 - alpha) * old + alpha * new of tensors [N, C, …]; alpha [] is a scalar tensor."""
    if not old.is_contiguous() or not new.is_contiguous():  # the kernel needs the same layout for `old` and `new`
        old, new = dense(old), dense(new)
    result = torch.empty_like(new)
    launch_tiles("blend", old, new, alpha, result)
    return result


def blend_backward(alpha: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of `old` and `new` from the gradient of `blend`'s result."""
    gradient = gradient if gradient.is_contiguous() else dense(gradient)
    of_old, of_new = torch.empty_like(gradient), torch.empty_like(gradient)
    launch_tiles("blend_backward", gradient, alpha, of_old, of_new)
    return of_old, of_new


def launch_stddev(
    groups: tuple[int, int], x: Tensor, of_result: Tensor | None, of_gradient: Tensor | None, *results: Tensor | None
) -> None:
    """Launch the Triton kernel `stddev`, with one program for each group of images.

    `groups`: (images per group, groups per sub-batch).  With n groups, a group has every n-th image of a sub-batch.
    """
    (size, count), numbers = groups, x[0].numel()
    others = of_result, of_gradient, *results, count, size, numbers
    block = min(IMAGE_TILE, 1 << (numbers - 1).bit_length())
    launch("stddev", len(x) // size, x, *others, EPSILON=EPSILON, BLOCK=block, num_warps=8)


class Stddev(torch.autograd.Function):
    """The minibatch stddev [N] of features [N, C, H, W], differentiable twice."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, groups: tuple[int, int]) -> Tensor:
        x, ctx.groups = dense(x), groups
        ctx.save_for_backward(x)
        result = x.new_empty(len(x), dtype=torch.float32)
        launch_stddev(groups, x, None, None, result, None)
        return result

    @staticmethod
    def backward(ctx: Any, of_result: Tensor) -> tuple[Tensor, None]:
        return StddevGradient.apply(of_result, *ctx.saved_tensors, ctx.groups), None


class StddevGradient(torch.autograd.Function):
    """The backward pass of `Stddev`, which can be differentiated again."""

    @staticmethod
    def forward(ctx: Any, of_result: Tensor, x: Tensor, groups: tuple[int, int]) -> Tensor:
        of_result, ctx.groups = of_result.contiguous(), groups
        ctx.save_for_backward(of_result, x)
        result = torch.empty_like(x)
        launch_stddev(groups, x, of_result, None, result, None)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        of_result, x = ctx.saved_tensors
        of_of_result, of_x = torch.empty_like(of_result), torch.empty_like(x)
        launch_stddev(ctx.groups, x, of_result, dense(of_gradient), of_x, of_of_result)
        return of_of_result, of_x, None
