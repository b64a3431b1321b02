"""Convolutions (alone, or fused with 2x upsampling or pooling) and dense layers, by the fastest algorithm for a shape.

An algorithm has three functions: the convolution, its gradient with respect to the input, and its gradient with respect
to the kernel.  Each function is linear in each argument, so all higher derivatives need only these three functions.
PyTorch's own double backward is slow, because it uses whole feature maps as convolution kernels.
Shapes: N batch size, H height, W width, I input feature maps, O output feature maps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.ops import packed, products, winograd

WIDE = 128  # Winograd's algorithm is faster if a layer has at least this many input and output feature maps
MIN_TILES = 16  # Winograd's algorithm is faster if a batch of images is cut into at least this many tiles
CACHED = 128  # largest image side in pixels at which Winograd's tensors fit into the CPU's cache
LARGE = 64  # on CPUs, from this image width in pixels on, kernel gradients are faster in contiguous (NCHW) memory
MIN_KERNEL_TO_FACTORS = 4  # `SharedKernel` saves time if numel(kernel) / (numel(input) + numel(output)) reaches this


class Switches:
    """Settings of all operations.  The settings are global, because autograd runs backward passes in other threads."""

    reference = False  # whether forward passes use plain PyTorch operations, for comparisons
    # With `weight_gradients=False`, backward passes compute only gradients of images; `weight.grad` does not change.
    weight_gradients = True
    image_gradients = True  # whether to compute gradients of images; False in the backward pass of D's loss


@contextmanager
def switched(**values: bool) -> Iterator[None]:
    """Set `Switches` to `values` inside the `with` block."""
    before = {name: getattr(Switches, name) for name in values}
    for name, value in values.items():
        setattr(Switches, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(Switches, name, value)


def fuse_resampling(kernel: Tensor, rescaling: Rescaling, scale: float) -> Tensor:
    """Scale a kernel [O, I, 3, 3].  If asked, fuse it with pooling (to [O, I, 4, 4]) or upsampling (to [I, O, 4, 4]).

    A fused kernel is the sum of four shifted copies, which one matrix product adds ten times as fast as slicing does.
    """
    if rescaling is Rescaling.same:
        return kernel if scale == 1 else kernel * scale
    taps = kernel.permute(0, 2, 3, 1).flatten(1, 2)  # [O, 9, I]
    if rescaling is Rescaling.up:
        taps = taps.flatten(1).t().contiguous().view(9, -1, len(taps)).transpose(0, 1)  # [I, 9, O]
    box = resampling_box(rescaling, scale, kernel.dtype, kernel.device)
    wide = torch.bmm(box.expand(len(taps), -1, -1), taps)
    return wide.view(len(wide), 4, 4, -1).permute(0, 3, 1, 2)


def pack_kernel(kernel: Tensor, rescaling: Rescaling, scale: float) -> Tensor:
    """Multiply a kernel [O, I, 3, 3] by `scale`, fuse it with resampling, and pack it for `packed.convolve`."""
    fused = fuse_resampling(kernel, rescaling, scale)
    return packed.pack_kernel(fused, packed.pack_size(*kernel.shape[:2]), rescaling)


@cache  # cached, because launching ten CUDA kernels is slow
def resampling_box(rescaling: Rescaling, scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `scale` times the matrix [16, 9] that maps a 3x3 kernel's 9 weights to a fused 4x4 kernel's 16 weights."""
    shifts = torch.eye(4, 3, dtype=dtype, device=device)
    shifts = shifts + shifts.roll(1, 0)
    box = torch.kron(shifts, shifts) * scale
    return box.flip(1) if rescaling is Rescaling.up else box / 4  # a transposed convolution mirrors the kernel


def plain_convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """The plain PyTorch version of `convolve`, for comparisons."""
    if kernel.ndim == 2:
        return F.linear(x, kernel, bias)
    x = F.interpolate(x, scale_factor=2, mode="nearest") if rescaling is Rescaling.up else x
    x = F.conv2d(x, kernel, padding=kernel.shape[-1] // 2)
    x = F.avg_pool2d(x, 2) if rescaling is Rescaling.down else x
    return x if bias is None else x + bias[:, None, None]


def torch_convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """Compute a convolution or dense layer by PyTorch's functions; `kernel` comes from `fuse_resampling`."""
    if kernel.ndim == 2:
        return F.linear(x, kernel, bias)
    if rescaling is Rescaling.up:
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)
    if kernel.shape[-1] == 1 and x.device.type == "cuda":
        # With a 1x1 kernel, whose layout is ambiguous, `conv2d` returns channels-last only if x is channels-last.
        x = x.contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, kernel, bias, stride=1 if rescaling is Rescaling.same else 2, padding=int(kernel.shape[-1] > 1))


def torch_grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `torch_convolve` with respect to `x`."""
    if rescaling is Rescaling.up:
        return F.conv2d(gradient, kernel, stride=2, padding=1)
    stride = 1 if rescaling is Rescaling.same else 2
    return F.conv_transpose2d(gradient, kernel, stride=stride, padding=int(kernel.shape[-1] > 1))


def torch_grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling, side: int | None = None) -> Tensor:
    """The gradient of `torch_convolve` with respect to `kernel`.  `side`: 1 for a 1x1 kernel, None for any other."""
    if side is None and x.device.type == "cpu" and x.shape[-1] >= LARGE:
        x, gradient = x.contiguous(), gradient.contiguous()
    up, (fused_side, stride) = rescaling is Rescaling.up, products.side_and_stride(rescaling)
    features = (x.shape[1], gradient.shape[1]) if up else (gradient.shape[1], x.shape[1])
    kernel = x.new_empty(*features, side or fused_side, side or fused_side)  # PyTorch reads only the shape
    strides, paddings, asked = [stride] * 2, [int(side != 1)] * 2, [False, True, False]
    backward = torch.ops.aten.convolution_backward
    gradients = backward(gradient, x, kernel, None, strides, paddings, [1, 1], up, [0, 0], 1, asked)
    return gradients[1]  # type: ignore[no-any-return]


class Algorithm(NamedTuple):
    """A convolution algorithm.  Its functions take kernels that `prepare` has transformed.

    `convolve` takes x [N, I, H, W], kernel and bias [O].  `grad_input` takes the gradient [N, O, …] of the result, and
    the kernel.  `grad_weight` takes x and this gradient.  If `grad_weight` is None, autograd computes the gradients.
    """

    convolve: Callable[[Tensor, Tensor, Tensor | None, Rescaling], Tensor]
    grad_input: Callable[[Tensor, Tensor, Rescaling], Tensor] | None = None
    grad_weight: Callable[[Tensor, Tensor, Rescaling], Tensor] | None = None
    prepare: Callable[[Tensor, Rescaling, float], Tensor] = fuse_resampling
    only_scales: bool = True  # True: without resampling, `prepare` only scales kernels; callers may scale x instead


REFERENCE = Algorithm(plain_convolve, prepare=lambda kernel, rescaling, scale: kernel * scale, only_scales=False)
TORCH = Algorithm(torch_convolve)
DIRECT = Algorithm(torch_convolve, torch_grad_input, torch_grad_weight)
POINTWISE = Algorithm(torch_convolve, torch_grad_input, partial(torch_grad_weight, side=1))
RGB = Algorithm(torch_convolve)  # never called: the Triton kernels in `rgb.py` compute the convolutions from and to RGB
DENSE = Algorithm(products.dense, products.dense_grad_input, products.dense_grad_weight)
IM2COL = Algorithm(products.convolve, products.grad_input, products.grad_weight)
PACKED = Algorithm(packed.convolve, packed.grad_input, packed.grad_weight, pack_kernel, only_scales=False)
WINOGRAD = Algorithm(winograd.convolve, winograd.grad_input, winograd.grad_weight, winograd.transform_kernel, False)


def algorithm_for(x: Tensor, shape: torch.Size, rescaling: Rescaling) -> Algorithm:
    """The fastest algorithm for an input `x` and a kernel of `shape` [O, I, …], as measured (docs/performance.md)."""
    if Switches.reference:
        return REFERENCE
    wide = min(shape[:2]) >= WIDE
    if len(shape) == 2:
        # DENSE is faster for large kernels, because `SharedKernel` computes the gradients of several passes together.
        return DENSE if wide else TORCH
    if x.device.type != "cpu":
        # For few 16-bit feature maps, PACKED (packs of neighbouring pixels) is faster, if packs divide the image width.
        packs = max(shape[:2]) <= packed.MAPS // 2 and x.dtype.itemsize == 2 and x.shape[-1] % (2 * packed.MAPS) == 0
        return POINTWISE if shape[-1] == 1 else PACKED if packs else DIRECT
    if shape[-1] > 1 and wide and x.dtype.itemsize >= 4 and x.shape[-1] <= CACHED:
        stride = 2 if rescaling is Rescaling.up else 4  # distance between Winograd's input tiles, in pixels
        if len(x) * (x.shape[2] // stride) * (x.shape[3] // stride) < MIN_TILES:
            return IM2COL
        if x.shape[2] % stride == x.shape[3] % stride == 0:
            return WINOGRAD
    # For 1x1 kernels and small images, autograd's derivatives (TORCH) are faster than this file's (DIRECT).
    return TORCH if shape[-1] == 1 or x.shape[-1] < LARGE else DIRECT


class Kernel(NamedTuple):
    """A layer's weights, prepared for `algorithm`, and what the function `convolve` needs to apply the weights."""

    tensor: Tensor
    algorithm: Algorithm
    rescaling: Rescaling
    put_off: list[tuple[Tensor, Tensor]] | None = None  # collects (layer input, output gradient) for `SharedKernel`
    aside: list[Tensor] | None = None  # collects kernel gradients for `preparation.Prepare`


def share_kernel(kernel: Kernel) -> Kernel:
    """On CPUs, pass `kernel` through `SharedKernel`, which computes the gradients of all uses of `kernel` together."""
    tensor = kernel.tensor
    if not tensor.requires_grad or tensor.device.type != "cpu" or kernel.algorithm.grad_weight is None:
        return kernel
    kernel = kernel._replace(put_off=[])
    return kernel._replace(tensor=SharedKernel.apply(*kernel[:4]))


def convolve(x: Tensor, kernel: Kernel, bias: Tensor | None = None) -> Tensor:
    """Apply a convolution, [N, I, H, W] -> [N, O, …], or a dense layer, [N, I] -> [N, O], and add `bias` [O]."""
    tensor, algorithm, rescaling, put_off, aside = kernel
    if algorithm.grad_weight is None:
        return algorithm.convolve(x, tensor, bias, rescaling)
    return Convolution.apply(x, tensor, None, bias, (algorithm, rescaling, put_off, aside))  # type: ignore[no-any-return]


class Convolution(torch.autograd.Function):
    """Computes a convolution, or one of its gradients.  One of the arguments x, kernel and y of `forward` is None.

    If y is None, `forward` returns the convolution of x with kernel, plus bias.  Otherwise, y is the gradient of the
    convolution's result.  Then `forward` returns the gradient of the argument that is None: x or kernel.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, kernel: Any, y: Any, bias: Any, how: tuple[Any, ...]) -> Tensor:  # noqa: PLR0917
        ctx.save_for_backward(x, kernel, y)
        ctx.set_materialize_grads(False)
        ctx.how = how
        algorithm, rescaling, *_ = how
        if y is None:
            return algorithm.convolve(x, kernel, bias, rescaling)  # type: ignore[no-any-return]
        adjoint = algorithm.grad_input(y, kernel, rescaling) if x is None else algorithm.grad_weight(x, y, rescaling)
        return adjoint  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, y = (gradient if saved is None else saved for saved in ctx.saved_tensors)
        apply: Callable[..., Tensor] = Convolution.apply
        asked, (_, _, put_off, aside) = ctx.needs_input_grad, ctx.how
        for_x = apply(None, kernel, y, None, ctx.how) if asked[0] else None
        for_kernel = for_bias = None
        if asked[1] and Switches.weight_gradients:
            # `SharedKernel` saves time only for small images, and can't be differentiated twice.
            small = MIN_KERNEL_TO_FACTORS * (x.numel() + y.numel()) <= kernel.numel()
            if put_off is not None and small and not torch.is_grad_enabled():
                put_off.append((x, y))
            else:
                for_kernel = apply(x, None, y, None, ctx.how)
            if aside is not None and for_kernel is not None and not torch.is_grad_enabled():
                aside.append(for_kernel)
                for_kernel = None
        for_y = apply(x, kernel, None, None, ctx.how) if asked[2] else None
        if asked[3] and Switches.weight_gradients:
            for_bias = y.sum((0, *range(2, y.dim())))
        return for_x, for_kernel, for_y, for_bias, None


class SharedKernel(torch.autograd.Function):
    """Returns a kernel unchanged.  `backward` computes the sum of the kernel's gradients by one matrix product.

    D uses a kernel three or four times in a step (reals, fakes, gradient penalty).  For small images, adding up the
    gradients of all uses is slow.  So each backward pass of a layer only appends (input, output gradient) to `put_off`.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, *how: Any) -> Tensor:
        ctx.set_materialize_grads(False)
        ctx.how = how
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor | None) -> tuple[Tensor | None, None, None, None]:
        algorithm, rescaling, put_off = ctx.how
        if put_off:
            x, y = (torch.cat(each) if len(each) > 1 else each[0] for each in zip(*put_off, strict=True))
            put_off.clear()
            late = algorithm.grad_weight(x, y, rescaling)
            gradient = late if gradient is None else gradient + late
        return gradient, None, None, None
