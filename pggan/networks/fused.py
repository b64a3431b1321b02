"""Activations, pixel norm, fades and the bilateral filter, in one pass over memory each, by Triton kernels.

They are used where they work. The first one that fails, for whatever reason, is the last one tried: from then on the
functions here do nothing and say so, and their callers calculate the same with PyTorch's operations.
N batch, C features, H and W sides.
"""

import sys
from collections.abc import Callable
from functools import cache
from math import ceil
from subprocess import CalledProcessError
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

DEVICE = "cuda"  # the type of devices that have kernels
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDEST = 1024  # features of a pixel, which lie in one tile
TILE = 2048  # numbers that a program holds at a time: 16 in the registers of each of its 128 threads
PROGRAMS = 1024  # an H200 runs about as many at a time: 8 on each of its 132 multiprocessors
REASON_WIDTH = 120  # characters, of the reason why there are no kernels
MAX_TILES_PER_PROGRAM = 8  # that a program sums at most: beyond that, the sums are too few bytes to matter


def _print(text: str) -> None:
    print(text, file=sys.stderr)


class Kernels:
    """The kernels of this process, of which any may fail the first time that it is needed."""

    def __init__(self) -> None:
        self.working = True
        self.log: Callable[[str], None] = _print  # called once, when one has failed

    def launch(self, name: str, programs: int, x: Tensor, *arguments: object, **constants: float) -> bool:
        """Start a kernel on the device of `x`, its first argument; whether that worked.

        Raises torch.OutOfMemoryError, which is no fault of the kernel's.
        """
        if not self.working or isinstance(x, FakeTensor):
            return self.working
        try:
            with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
                # FP fusion is named because Triton 3.9 warns that its default will change.
                kernel(name)[(programs,)](x, *arguments, **constants, **tile(x.shape[1]), enable_fp_fusion=True)
        except Exception as error:
            if "out of memory" in str(error):
                raise torch.OutOfMemoryError(str(error)) from error
            self.stop(_reason(error))
        return self.working

    def stop(self, reason: str) -> None:
        """Do without kernels from now on, and say why."""
        self.working = False
        self.log(f"Layers are calculated without fused kernels, which is slower: {reason}")


def _reason(error: Exception) -> str:
    """Why a kernel failed, in words that fit into two lines of a terminal."""
    text = (str(error) or type(error).__name__).strip().splitlines()[0]
    if isinstance(error, CalledProcessError) or "C compiler" in text:  # Triton compiles what launches a kernel
        return "Triton needs a C compiler and Python's headers (apt-get install gcc python3-dev)"
    return shorten(text, REASON_WIDTH, placeholder=" …")


KERNELS = Kernels()


@cache
def kernel(name: str) -> Any:
    """A kernel of `triton_kernels.py`; raises ImportError where there is no Triton."""
    from pggan.networks import triton_kernels

    return getattr(triton_kernels, name)


@cache
def tile(features: int) -> dict[str, int]:
    """The shape of the tiles of maps with so many features."""
    columns = 1 << (features - 1).bit_length()
    return {"C": features, "ROWS": max(TILE // columns, 1), "COLUMNS": columns}


def pixels_of(x: Tensor) -> tuple[int, int]:
    """The pixels of `x` [N, C, H, W] or [N, C], and the tiles that they make."""
    pixels = x.numel() // x.shape[1]
    return pixels, ceil(pixels / tile(x.shape[1])["ROWS"])


def fits(x: Tensor) -> bool:
    """Whether the kernels can process `x` [N, C, H, W] or [N, C]: a pixel's features have to lie side by side."""
    if x.device.type != DEVICE or x.dtype not in DTYPES or not 0 < x.shape[1] <= WIDEST:
        return False
    return x.is_contiguous(memory_format=memory_format(x))


def memory_format(x: Tensor) -> torch.memory_format:
    """The memory format of `x` [N, C, H, W] or [N, C] in which the features of a pixel lie side by side."""
    return torch.channels_last if x.ndim == 4 else torch.contiguous_format


def activate(x: Tensor, bias: Tensor, slope: float) -> Tensor | None:
    """The leaky ReLU of `x` [N, C, …] + `bias` [C]; None where no kernel works."""
    x = x.contiguous(memory_format=memory_format(x))
    if not fits(x):
        return None
    y, (pixels, tiles) = torch.empty_like(x), pixels_of(x)
    worked = KERNELS.launch("bias_act_forward", tiles, x, bias, y, None, pixels, SLOPE=slope, EPSILON=0.0)
    return y if worked else None


def activate_and_normalize(x: Tensor, bias: Tensor, slope: float, epsilon: float) -> Tensor | None:
    """Set `x` [N, C, H, W] to the pixel norm of the leaky ReLU of `x` + `bias` [C].

    Returns the factor of each pixel, in float32 [N, 1, H, W]; None where no kernel works.
    """
    if not fits(x):
        return None
    scale, (pixels, tiles) = x.new_empty(len(x), 1, *x.shape[2:], dtype=torch.float32), pixels_of(x)
    worked = KERNELS.launch("bias_act_forward", tiles, x, bias, x, scale, pixels, SLOPE=slope, EPSILON=epsilon)
    return scale if worked else None


def grad_input(
    gradient: Tensor, y: Tensor, scale: Tensor | None, slope: float, *, sums: bool
) -> tuple[Tensor, Tensor | None] | None:
    """The `gradient` of `y`, of `activate` (no `scale`) or `activate_and_normalize`, turned into that of their x.

    The second tensor is its sum over all pixels, in float32 [C], where `sums` asks for it: in two steps whose order is
    always the same.  None where no kernel works.
    """
    gradient = gradient.contiguous(memory_format=memory_format(y))
    if not fits(y):
        return None
    result, (pixels, tiles) = torch.empty_like(gradient), pixels_of(y)
    each = min(ceil(tiles / PROGRAMS), MAX_TILES_PER_PROGRAM) if sums else 1
    programs = ceil(tiles / each)
    partial = y.new_empty(programs, y.shape[1], dtype=torch.float32) if sums else None
    worked = KERNELS.launch(
        "bias_act_backward", programs, gradient, y, scale, result, partial, pixels, each, SLOPE=slope
    )
    return (result, None if partial is None else partial.sum(0)) if worked else None


def blend(old: Tensor, new: Tensor, alpha: Tensor) -> Tensor | None:
    """`old` [N, C, …] at an `alpha` [] of 0, `new` at 1, in between their blend; None where no kernel works."""
    old = old.contiguous(memory_format=memory_format(new))
    if not (fits(old) and fits(new) and old.dtype == new.dtype):
        return None
    result, (pixels, tiles) = torch.empty_like(new), pixels_of(new)
    return result if KERNELS.launch("blend", tiles, old, new, alpha, result, pixels) else None


def blend_backward(gradient: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor] | None:
    """The gradients of `old` and of `new` in `blend`, from that of its result; None where no kernel works."""
    gradient = gradient.contiguous(memory_format=memory_format(gradient))
    if not fits(gradient):
        return None
    of_old, of_new, (pixels, tiles) = torch.empty_like(gradient), torch.empty_like(gradient), pixels_of(gradient)
    return (
        (of_old, of_new) if KERNELS.launch("blend_backward", tiles, gradient, alpha, of_old, of_new, pixels) else None
    )


def bilateral(images: Tensor, factor: float) -> tuple[Tensor, Tensor] | None:
    """`images` [N, C, H, W] after one pass of the bilateral filter, and the sums of weights, in float32 [N, 1, H, W].

    Args: factor: of squared distances of colours, in the exponent of a weight.  None where no kernel works.
    """
    images = images.contiguous(memory_format=torch.channels_last)
    if not fits(images):
        return None
    result, (pixels, tiles) = torch.empty_like(images), pixels_of(images)
    total = images.new_empty(len(images), 1, *images.shape[2:], dtype=torch.float32)
    sides = images.shape[2:]
    worked = KERNELS.launch("bilateral_forward", tiles, images, result, total, pixels, *sides, FACTOR=factor)
    return (result, total) if worked else None


def bilateral_backward(
    gradient: Tensor, images: Tensor, filtered: Tensor, total: Tensor, factor: float
) -> Tensor | None:
    """The gradient of `images`, from that of what `bilateral` made of them; None where no kernel works."""
    gradient, images = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (gradient, images))
    if not (fits(images) and fits(filtered)):
        return None
    result, (pixels, tiles) = torch.empty_like(gradient), pixels_of(images)
    tensors = images, gradient, filtered, total, result
    worked = KERNELS.launch("bilateral_backward", tiles, *tensors, pixels, *images.shape[2:], FACTOR=factor)
    return result if worked else None
