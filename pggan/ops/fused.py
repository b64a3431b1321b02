"""Triton kernels for CUDA compute activations, pixel norm and fades in one pass over memory each.

`problem` tries the kernels once.  If they fail, the networks use PyTorch's operations instead.
Shapes: N batch size, C features, H height, W width.
"""

from collections.abc import Sequence
from functools import cache
from math import ceil
from subprocess import CalledProcessError
from textwrap import shorten
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pggan.ops.convolution import Switches

LEAKY_SLOPE = 0.2  # slope of the leaky ReLU below 0 (paper Table 2)
EPSILON = 1e-8  # added to the mean square under the root of pixel norm (paper section 4.2)
WIDEST = 1024  # largest number of features that the kernels support, because a tile holds all features of a pixel
TILE = 2048  # numbers that a Triton program holds at a time: 16 in the registers of each of its 128 threads
PROGRAMS = 512  # Triton programs that sum over pixels: about 4 on each of an H200's 132 multiprocessors
REASON_WIDTH = 120  # largest length of the message that says why the Triton kernels do not work


@cache
@torch.enable_grad()  # because the first call may be in a pass without gradients
def problem() -> str | None:
    """Why the Triton kernels do not work on this machine, in one line; None if they work."""
    try:
        x = torch.zeros(1, 8, 2, 2, device="cuda").contiguous(memory_format=torch.channels_last)
        scale = bias_act_norm_(x, x.new_zeros(8))
        bias_act_backward(x, x, scale, PixelSums([x.new_zeros(8)]).rows(0, x))
        Blend.apply(x.requires_grad_(), x, x.new_zeros(())).sum().backward()
    except Exception as error:
        text = (str(error) or type(error).__name__).strip().splitlines()[0]
        if isinstance(error, CalledProcessError) or "C compiler" in text:  # Triton has to compile C code
            return "Triton needs a C compiler and Python's headers (apt-get install gcc python3-dev)"
        return shorten(text, REASON_WIDTH, placeholder=" …")
    return None


def launch(name: str, x: Tensor, *others: object, each: int | None = None, **constants: float) -> None:
    """Launch kernel `name` of `triton_kernels.py` on `x` and `others`.  `each`: tiles per Triton program; None = 1."""
    from pggan.ops import triton_kernels  # imported late, because Triton is not installed everywhere

    (pixels, tiles), columns = pixels_of(x), padded(x)
    tile = {"C": x.shape[1], "ROWS": max(TILE // columns, 1), "COLUMNS": columns}
    kernel, more = getattr(triton_kernels, name), () if each is None else (each,)
    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        # `enable_fp_fusion` is set because Triton 3.9 warns that the default of this option will change.
        kernel[(ceil(tiles / (each or 1)),)](x, *others, pixels, *more, **constants, **tile, enable_fp_fusion=True)


def padded(x: Tensor) -> int:
    """The number of features of `x`, rounded up to a power of two."""
    return 1 << (x.shape[1] - 1).bit_length()


def pixels_of(x: Tensor) -> tuple[int, int]:
    """The number of pixels of `x` [N, C, H, W] or [N, C], and the number of Triton tiles that cover the pixels."""
    pixels = x.numel() // x.shape[1]
    return pixels, ceil(pixels / max(TILE // padded(x), 1))


def dense(x: Tensor) -> Tensor:
    """`x` [N, C, H, W] or [N, C] itself if its memory is channels-last, else a channels-last copy."""
    return x.contiguous(memory_format=torch.channels_last if x.ndim == 4 else torch.contiguous_format)


def bias_act_norm_(x: Tensor, bias: Tensor) -> Tensor:
    """Set `x` [N, C, H, W] to the pixel norm of the leaky ReLU of `x` + `bias` [C].

    Returns the factor that pixel norm multiplied each pixel by, float32 [N, 1, H, W].
    """
    y, scale = dense(x), x.new_empty(len(x), 1, *x.shape[2:], dtype=torch.float32)
    launch("bias_act_forward", y, bias, y, scale, SLOPE=LEAKY_SLOPE, EPSILON=EPSILON)
    if y is not x:
        x.copy_(y)
    return scale


def pixel_norm(x: Tensor) -> Tensor:
    """The pixel norm of `x` [N, C]; no gradient flows through it."""
    y, scale = torch.empty_like(x), x.new_empty(len(x), dtype=torch.float32)
    launch("bias_act_forward", x.contiguous(), None, y, scale, SLOPE=1.0, EPSILON=EPSILON)
    return y


class PixelSums:
    """Gradients of many parameters that are sums over pixels, in a fixed order, so that their bits are reproducible.

    Each use of a parameter adds to the parameter's columns: a Triton program to one row.  `take` sums up all rows.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters, self.used = parameters, set[int]()
        self.sizes = [parameter.numel() for parameter in parameters]
        self.pitch = sum(self.sizes)  # numbers from a row to the next one
        self.memory: Tensor | None = None  # [PROGRAMS, pitch], from the first use on

    def rows(self, number: int, like: Tensor) -> Tensor:
        """The columns [PROGRAMS, …] of parameter `number`, on the device of `like`."""
        if self.memory is None:
            self.memory = torch.zeros(PROGRAMS, self.pitch, device=like.device)
        self.used.add(number)
        return torch.split(self.memory, self.sizes, 1)[number]

    def take(self, others: Sequence[Tensor | None]) -> list[Tensor | None]:
        """The gradients of the parameters that were used, each plus its other gradient, if any; then start anew."""
        totals = () if self.memory is None else torch.split(self.memory.sum(0), self.sizes)
        found = list(others)
        for number in self.used:
            parameter, other = self.parameters[number], others[number]
            total = totals[number].as_strided(parameter.shape, parameter.stride())
            found[number] = total if other is None else total + other
        self.memory, self.used = None, set()
        return found


class Slot(NamedTuple):
    """The place of one parameter in `PixelSums`, where backward passes put its gradient aside."""

    sums: PixelSums
    number: int

    def rows(self, like: Tensor) -> Tensor:
        """The columns of this parameter."""
        return self.sums.rows(self.number, like)


def own_slot(y: Tensor) -> Slot:
    """The place of the bias of features `y` [N, C, …] that no network prepared."""
    return Slot(PixelSums([y.new_empty(y.shape[1])]), 0)


def bias_act_backward(gradient: Tensor, y: Tensor, scale: Tensor | None, rows: Tensor | None) -> Tensor:
    """The gradient of x from the `gradient` of y, where y = `BiasAct`(x), or with a `scale`, y = `bias_act_norm_`(x).

    The gradient of the bias, which is the sum of this gradient over all pixels, is added to `rows` [PROGRAMS, C].
    """
    gradient, y, (_, tiles) = dense(gradient), dense(y), pixels_of(y)
    result = torch.empty_like(gradient)
    each, pitch = (1, 0) if rows is None else (ceil(tiles / len(rows)), rows.stride(0))
    launch("bias_act_backward", gradient, y, scale, result, rows, pitch, each=each, SLOPE=LEAKY_SLOPE)
    return result


class BiasAct(torch.autograd.Function):
    """Leaky ReLU of x [N, C, …] + bias [C], differentiable twice.  Autograd saves only the result."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor, slot: Slot | None = None) -> Tensor:
        x = dense(x)
        y = torch.empty_like(x)
        launch("bias_act_forward", x, bias, y, None, SLOPE=LEAKY_SLOPE, EPSILON=0.0)
        ctx.save_for_backward(y)
        ctx.set_materialize_grads(False)
        ctx.bias_dtype, ctx.slot = bias.dtype, slot
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, Tensor | None, None]:
        if gradient is None:
            return None, None, None
        y, rows = ctx.saved_tensors[0].detach(), None  # y has no second derivative, because only the sign of y matters
        if ctx.needs_input_grad[1] and Switches.weight_gradients:
            rows = (ctx.slot or own_slot(y)).rows(y)
        of_x = BiasActGradient.apply(gradient, y, rows)
        return of_x, None if rows is None or ctx.slot is not None else rows.sum(0).to(ctx.bias_dtype), None


class BiasActGradient(torch.autograd.Function):
    """The gradient of `BiasAct` with respect to x [N, C, …]; adds the gradient of the bias to `rows`, if given.

    This Function's forward and backward pass multiply a gradient by 1 where y > 0, and by the slope elsewhere.
    """

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, y: Tensor, rows: Tensor | None) -> Tensor:
        ctx.save_for_backward(y)
        ctx.set_materialize_grads(False)
        return bias_act_backward(gradient, y, None, rows)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None]:
        if gradient is None:
            return None, None, None
        return BiasActGradient.apply(gradient, *ctx.saved_tensors, None), None, None


class Blend(torch.autograd.Function):
    """The blend (1 - alpha) * old + alpha * new of tensors [N, C, …], with a scalar alpha []; differentiable twice."""

    @staticmethod
    def forward(ctx: Any, old: Tensor, new: Tensor, alpha: Tensor) -> Tensor:
        ctx.save_for_backward(alpha)
        if not old.is_contiguous() or not new.is_contiguous():  # a blend works in any order in memory that both share
            old, new = dense(old), dense(new)
        result = torch.empty_like(new)
        launch("blend", old, new, alpha, result)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        return *BlendBackward.apply(gradient, *ctx.saved_tensors), None


class BlendBackward(torch.autograd.Function):
    """The gradients of `old` and `new` from the gradient of the blend.  This function's derivative is `Blend`."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(alpha)
        gradient = gradient if gradient.is_contiguous() else dense(gradient)
        of_old, of_new = torch.empty_like(gradient), torch.empty_like(gradient)
        launch("blend_backward", gradient, alpha, of_old, of_new)
        return of_old, of_new

    @staticmethod
    def backward(ctx: Any, of_old: Tensor, of_new: Tensor) -> tuple[Tensor, None]:
        return Blend.apply(of_old, of_new, *ctx.saved_tensors), None
