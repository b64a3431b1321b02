"""Convolutions, alone or fused with resampling, and dense layers: each by the fastest algorithm for its shape.

An algorithm is three functions: the convolution, and its gradients with respect to the image and to the kernel.  Each
function is linear in both arguments, so all derivatives are made of these three functions.  A gradient penalty never
needs PyTorch's double backward, which is slow, because it convolves with whole feature maps as kernels.
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

WIDE = 128  # with this many feature maps or more, Winograd saves more time than its transformations cost
MIN_TILES = 16  # with fewer image tiles in a batch, transforming the kernel for Winograd costs more than Winograd saves
CACHED = 128  # largest side in pixels at which WIDE feature maps fit into the CPU's cache after Winograd's transforms
LARGE = 64  # from this image side in pixels on, kernel gradients on CPUs are much faster without channels-last
# `SharedKernel` delays gradients of a kernel that is this many times as large as a layer's input and output together.
MIN_KERNEL_TO_FACTORS = 4


class Switches:
    """Settings of all operations.  The settings are global, because autograd runs backward passes in its own threads.

    `reference`: every operation runs as its plain version: PyTorch operations with PyTorch's own derivatives.
    `pggan bench against=true` compares the speed of fast and plain operations, and the tests compare their results.

    `weight_gradients`: whether backward passes compute gradients of weights.  `torch.autograd.grad` with respect to
    images needs False.  Otherwise, gradients that `SharedKernel` delays would later be added to `weight.grad`.

    `image_gradients`: whether backward passes compute gradients of D's images.  The backward pass of D's loss needs
    only gradients of weights, so False saves time.
    """

    reference = False  # read in forward passes; a backward pass uses the algorithm of its forward pass
    weight_gradients = True
    image_gradients = True


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
    """`scale` times a kernel [O, I, 3, 3], fused with resampling: [O, I, 4, 4] for `down`, [I, O, 4, 4] for `up`.

    The fused kernel is the sum of four copies of the kernel, shifted by 0 or 1 pixel down and right.  A matrix product
    computes the sum in the memory layout that convolutions expect; autograd takes ten times as long for sums of slices.
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
    """`scale` times a kernel [O, I, 3, 3], fused with resampling and packed for `packed.convolve`."""
    fused = fuse_resampling(kernel, rescaling, scale)
    return packed.pack_kernel(fused, packed.pack_size(*kernel.shape[:2]), rescaling)


@cache  # cached, because on a GPU, launching the ten kernels of this function takes longer than running them
def resampling_box(rescaling: Rescaling, scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`scale` times the matrix [16, 9] that maps the taps of a 3x3 kernel to the taps of the fused 4x4 kernel."""
    shifts = torch.eye(4, 3, dtype=dtype, device=device)
    shifts = shifts + shifts.roll(1, 0)
    box = torch.kron(shifts, shifts) * scale
    return box.flip(1) if rescaling is Rescaling.up else box / 4  # a transposed convolution mirrors its kernel


def plain_convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """The plain PyTorch version of `convolve`: upsampling, convolution or dense layer, box pooling, then bias."""
    if kernel.ndim == 2:
        return F.linear(x, kernel, bias)
    x = F.interpolate(x, scale_factor=2, mode="nearest") if rescaling is Rescaling.up else x
    x = F.conv2d(x, kernel, padding=kernel.shape[-1] // 2)
    x = F.avg_pool2d(x, 2) if rescaling is Rescaling.down else x
    return x if bias is None else x + bias[:, None, None]


def torch_convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """PyTorch's convolution or dense layer; `kernel` comes from `fuse_resampling`."""
    if kernel.ndim == 2:
        return F.linear(x, kernel, bias)
    if rescaling is Rescaling.up:
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)
    if kernel.shape[-1] == 1 and x.device.type == "cuda":
        # A channels-last x makes the result channels-last.  A 1x1 kernel can't, because its strides fit all layouts.
        x = x.contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, kernel, bias, stride=1 if rescaling is Rescaling.same else 2, padding=int(kernel.shape[-1] > 1))


def torch_grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The gradient of `torch_convolve` with respect to `x`, computed by another convolution."""
    if rescaling is Rescaling.up:
        return F.conv2d(gradient, kernel, stride=2, padding=1)
    stride = 1 if rescaling is Rescaling.same else 2
    return F.conv_transpose2d(gradient, kernel, stride=stride, padding=int(kernel.shape[-1] > 1))


def torch_grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling, side: int | None = None) -> Tensor:
    """The gradient of `torch_convolve` with respect to `kernel`.  `side` None means 3, or 4 with fused resampling."""
    if side is None and x.device.type == "cpu" and x.shape[-1] >= LARGE:
        x, gradient = x.contiguous(), gradient.contiguous()
    up, (fused_side, stride) = rescaling is Rescaling.up, products.side_and_stride(rescaling)
    features = (x.shape[1], gradient.shape[1]) if up else (gradient.shape[1], x.shape[1])
    kernel = x.new_empty(*features, side or fused_side, side or fused_side)  # PyTorch reads only the kernel's shape
    strides, paddings, asked = [stride] * 2, [int(side != 1)] * 2, [False, True, False]
    backward = torch.ops.aten.convolution_backward
    gradients = backward(gradient, x, kernel, None, strides, paddings, [1, 1], up, [0, 0], 1, asked)
    return gradients[1]  # type: ignore[no-any-return]


class Algorithm(NamedTuple):
    """A convolution algorithm.  `prepare` transforms a kernel [O, I, 3, 3]; the other functions take the new kernel.

    `convolve` takes x [N, I, H, W], kernel and bias [O].  `grad_input` takes the gradient [N, O, …] of the result, and
    the kernel.  `grad_weight` takes x and the gradient.  If `grad_weight` is None, autograd computes the gradients.
    """

    convolve: Callable[[Tensor, Tensor, Tensor | None, Rescaling], Tensor]
    grad_input: Callable[[Tensor, Tensor, Rescaling], Tensor] | None = None
    grad_weight: Callable[[Tensor, Tensor, Rescaling], Tensor] | None = None
    prepare: Callable[[Tensor, Rescaling, float], Tensor] = fuse_resampling  # takes kernel, rescaling and scale
    only_scales: bool = True  # without resampling, `prepare` only scales the kernel, so callers may scale x instead


REFERENCE = Algorithm(plain_convolve, prepare=lambda kernel, rescaling, scale: kernel * scale, only_scales=False)
TORCH = Algorithm(torch_convolve)
DIRECT = Algorithm(torch_convolve, torch_grad_input, torch_grad_weight)
POINTWISE = Algorithm(torch_convolve, torch_grad_input, partial(torch_grad_weight, side=1))
RGB = Algorithm(torch_convolve)  # marks layers that the Triton kernels of `rgb.py` compute
DENSE = Algorithm(products.dense, products.dense_grad_input, products.dense_grad_weight)
IM2COL = Algorithm(products.convolve, products.grad_input, products.grad_weight)
PACKED = Algorithm(packed.convolve, packed.grad_input, packed.grad_weight, pack_kernel, only_scales=False)
WINOGRAD = Algorithm(winograd.convolve, winograd.grad_input, winograd.grad_weight, winograd.transform_kernel, False)


def algorithm_for(x: Tensor, shape: torch.Size, rescaling: Rescaling) -> Algorithm:
    """The algorithm for `x` [N, I] or [N, I, H, W] and a kernel of `shape` [O, I], [O, I, 1, 1] or [O, I, 3, 3].

    WIDE, MIN_TILES, CACHED and LARGE were measured on processors with AVX2 and AVX-512 (docs/performance.md).
    """
    if Switches.reference:
        return REFERENCE
    wide = min(shape[:2]) >= WIDE
    if len(shape) == 2:
        # With `F.linear`, autograd would add up the kernel gradients of all passes, which is slow for large kernels.
        # With DENSE on CPUs, one matrix product in `SharedKernel` computes the kernel gradient of all passes.
        return DENSE if wide else TORCH
    if x.device.type != "cpu":
        # Packs of pixels speed up GPUs in 16-bit precision, for few feature maps, if image rows consist of whole packs.
        packs = max(shape[:2]) <= packed.MAPS // 2 and x.dtype.itemsize == 2 and x.shape[-1] % (2 * packed.MAPS) == 0
        return POINTWISE if shape[-1] == 1 else PACKED if packs else DIRECT
    if shape[-1] > 1 and wide and x.dtype.itemsize >= 4 and x.shape[-1] <= CACHED:
        stride = 2 if rescaling is Rescaling.up else 4  # distance of neighbouring Winograd tiles in x, in pixels
        if len(x) * (x.shape[2] // stride) * (x.shape[3] // stride) < MIN_TILES:
            return IM2COL
        if x.shape[2] % stride == x.shape[3] % stride == 0:
            return WINOGRAD
    # PyTorch's own derivatives are faster for 1x1 kernels, and for images with a side below LARGE pixels.
    return TORCH if shape[-1] == 1 or x.shape[-1] < LARGE else DIRECT


class Kernel(NamedTuple):
    """A kernel that `algorithm.prepare` has transformed, and the settings with which `convolve` uses the kernel."""

    tensor: Tensor
    algorithm: Algorithm
    rescaling: Rescaling
    put_off: list[tuple[Tensor, Tensor]] | None = None  # (input, output gradient) of each delayed kernel gradient
    aside: list[Tensor] | None = None  # kernel gradients that `preparation.Prepare` will sum up


def share_kernel(kernel: Kernel) -> Kernel:
    """Share `kernel` among forward passes; on CPUs, `SharedKernel` computes all kernel gradients together."""
    tensor = kernel.tensor
    if not tensor.requires_grad or tensor.device.type != "cpu" or kernel.algorithm.grad_weight is None:
        return kernel
    kernel = kernel._replace(put_off=[])
    return kernel._replace(tensor=SharedKernel.apply(*kernel[:4]))


def convolve(x: Tensor, kernel: Kernel, bias: Tensor | None = None) -> Tensor:
    """A convolution [N, I, H, W] -> [N, O, …] or a dense layer [N, I] -> [N, O]; `bias` [O]."""
    tensor, algorithm, rescaling, put_off, aside = kernel
    if algorithm.grad_weight is None:
        return algorithm.convolve(x, tensor, bias, rescaling)
    return Convolution.apply(x, tensor, None, bias, (algorithm, rescaling, put_off, aside))  # type: ignore[no-any-return]


class Convolution(torch.autograd.Function):
    """Computes a convolution or one of the two gradients: whichever of y, x and kernel is None.

    If y is None, `forward` returns the convolution of x with kernel, plus bias.  Otherwise, y is the gradient of the
    convolution's result, and `forward` returns the gradient of x if x is None, or of kernel if kernel is None.
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
            # A delayed gradient can't be differentiated.  For large images, a delay saves nothing.
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
    """Return a kernel unchanged, and compute the kernel's gradients together, after the backward passes of all uses.

    Each use only appends the layer's input x and output gradient y to `put_off`.  One matrix product then computes the
    sum of the kernel gradients.  In a step, each kernel of D gets three or four gradients: from reals, fakes and the
    gradient penalty.  For small images, a kernel gradient is larger than x and y, and takes longer to write, read and
    add than to compute.
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
