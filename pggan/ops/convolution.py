"""Convolutions, alone or fused with resampling, and dense layers: each by the fastest algorithm for its shape.

An algorithm is three functions: the convolution, and its adjoints in the image and in the kernel.  Each is linear in
both of its arguments.  So the derivatives of the three are the three themselves, to any order: a gradient penalty never
needs PyTorch's own second derivative, which convolves with whole feature maps as kernels.
N batch, H and W sides, I and O feature maps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Rescaling
from pggan.ops import products, winograd

WIDE = 128  # feature maps from which Winograd's products outweigh its transformations (docs/performance.md)
MIN_TILES = 16  # in a batch, from which they outweigh the transformation of the kernel
CACHED = 128  # side up to which a transformed image of that width stays in the cache
LARGE = 64  # side from which the CPU's kernel gradient is much faster on planes than on pixels
# A kernel is so many times as large as both factors of a gradient that is put off: memory stays as it was.
MIN_KERNEL_TO_FACTORS = 4


class Switches:
    """The choices of all operations; global, because autograd runs backward passes in threads of its own.

    `reference`: they are their plain twins, with PyTorch's operations in the fewest words and PyTorch's derivatives.
    `pggan bench against=true` measures a step against the twins, and tests compare them with the fast ones.

    `weight_gradients`: backward passes calculate them.  False around every `torch.autograd.grad` of images, which would
    drop them: PyTorch tells its own functions which gradients are asked for, but not those written in Python.  Where
    kernels are shared, the factors that were put off would be added to the next gradient.
    """

    reference = False  # read in forward passes only
    weight_gradients = True


@contextmanager
def switched(**values: bool) -> Iterator[None]:
    """Inside, `Switches` have these values."""
    before = {name: getattr(Switches, name) for name in values}
    for name, value in values.items():
        setattr(Switches, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(Switches, name, value)


def fuse_resampling(kernel: Tensor, rescaling: Rescaling, scale: float) -> Tensor:
    """A kernel [O, I, 3, 3] times `scale`, fused with the resampling: for `down` [O, I, 4, 4], for `up` [I, O, 4, 4].

    The fused kernel is the sum of four one-pixel shifts.  A product of matrices makes it, with its output maps side by
    side in memory as convolutions expect them: the derivative of sums of slices takes ten times as long.
    """
    if rescaling is Rescaling.same:
        return kernel if scale == 1 else kernel * scale
    taps = kernel.permute(0, 2, 3, 1).flatten(1, 2)  # [O, 9, I]
    if rescaling is Rescaling.up:
        taps = taps.flatten(1).t().contiguous().view(9, -1, len(taps)).transpose(0, 1)  # [I, 9, O]
    box = resampling_box(rescaling, scale, kernel.dtype, kernel.device)
    wide = torch.bmm(box.expand(len(taps), -1, -1), taps)
    return wide.view(len(wide), 4, 4, -1).permute(0, 3, 1, 2)


@cache  # on a GPU, its ten operations start slower than they run
def resampling_box(rescaling: Rescaling, scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix [16, 9] from the taps of a 3x3 kernel to the taps of the fused 4x4 kernel, times `scale`."""
    shifts = torch.eye(4, 3, dtype=dtype, device=device)
    shifts = shifts + shifts.roll(1, 0)
    box = torch.kron(shifts, shifts) * scale
    return box.flip(1) if rescaling is Rescaling.up else box / 4  # a transposed convolution mirrors its kernel


def plain_convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """The plain twin: upsampling, convolution or dense layer, box pooling and bias, one by one."""
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
        x = x.contiguous(memory_format=torch.channels_last)  # such a kernel has no layout: images would pass theirs
    return F.conv2d(x, kernel, bias, stride=1 if rescaling is Rescaling.same else 2, padding=int(kernel.shape[-1] > 1))


def torch_grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `torch_convolve` in `x`: a convolution, too."""
    if rescaling is Rescaling.up:
        return F.conv2d(gradient, kernel, stride=2, padding=1)
    stride = 1 if rescaling is Rescaling.same else 2
    return F.conv_transpose2d(gradient, kernel, stride=stride, padding=int(kernel.shape[-1] > 1))


def torch_grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling, side: int | None = None) -> Tensor:
    """The adjoint of `torch_convolve` in `kernel`; `side` of the kernel where it is not 3, or 4 fused."""
    if side is None and x.device.type == "cpu" and x.shape[-1] >= LARGE:
        x, gradient = x.contiguous(), gradient.contiguous()
    up, (fused_side, stride) = rescaling is Rescaling.up, products.side_and_stride(rescaling)
    features = (x.shape[1], gradient.shape[1]) if up else (gradient.shape[1], x.shape[1])
    kernel = x.new_empty(*features, side or fused_side, side or fused_side)  # only its shape is used
    strides, paddings, asked = [stride] * 2, [int(side != 1)] * 2, [False, True, False]
    backward = torch.ops.aten.convolution_backward
    gradients = backward(gradient, x, kernel, None, strides, paddings, [1, 1], up, [0, 0], 1, asked)
    return gradients[1]  # type: ignore[no-any-return]


class Algorithm(NamedTuple):
    """A way to convolve; all functions but `prepare` take kernels in the form that `prepare` gives them."""

    convolve: Callable[[Tensor, Tensor, Tensor | None, Rescaling], Tensor]  # x [N, I, H, W], kernel, bias [O]
    grad_input: Callable[[Tensor, Tensor, Rescaling], Tensor] | None = None  # of gradient [N, O, …], kernel
    grad_weight: Callable[[Tensor, Tensor, Rescaling], Tensor] | None = None  # of x, gradient; None: PyTorch's own
    prepare: Callable[[Tensor, Rescaling, float], Tensor] = fuse_resampling  # of kernel [O, I, 3, 3] and its factor
    only_scales: bool = True  # where there is no resampling, `prepare` multiplies alone: the image may take the factor


REFERENCE = Algorithm(plain_convolve, prepare=lambda kernel, rescaling, scale: kernel * scale, only_scales=False)
TORCH = Algorithm(torch_convolve)
DIRECT = Algorithm(torch_convolve, torch_grad_input, torch_grad_weight)
POINTWISE = Algorithm(torch_convolve, torch_grad_input, partial(torch_grad_weight, side=1))
DENSE = Algorithm(products.dense, products.dense_grad_input, products.dense_grad_weight)
IM2COL = Algorithm(products.convolve, products.grad_input, products.grad_weight)
WINOGRAD = Algorithm(winograd.convolve, winograd.grad_input, winograd.grad_weight, winograd.transform_kernel, False)


def algorithm_for(x: Tensor, shape: torch.Size, rescaling: Rescaling) -> Algorithm:
    """The algorithm for `x` [N, I] or [N, I, H, W] and a kernel of `shape` [O, I], [O, I, 1, 1] or [O, I, 3, 3].

    The constants were measured on processors with AVX2 and AVX-512 (docs/performance.md).
    """
    on_cpu, wide = x.device.type == "cpu", min(shape[:2]) >= WIDE
    if Switches.reference:
        return REFERENCE
    if len(shape) == 2:
        # PyTorch's gradients of a kernel that is used several times come in several layouts, which it can't add in
        # place: for 8192x512 weights the sums take longer than the gradients.
        return DENSE if wide else TORCH
    if shape[-1] == 1:
        return TORCH if on_cpu else POINTWISE
    if on_cpu and wide and x.dtype.itemsize >= 4 and x.shape[-1] <= CACHED:
        stride = 2 if rescaling is Rescaling.up else 4  # pixels of an image from one of Winograd's tiles to the next
        if len(x) * (x.shape[2] // stride) * (x.shape[3] // stride) < MIN_TILES:
            return IM2COL
        if x.shape[2] % stride == x.shape[3] % stride == 0:
            return WINOGRAD
    # On CPUs, PyTorch's own derivatives are faster up to here.
    return TORCH if on_cpu and x.shape[-1] < LARGE else DIRECT


class Kernel(NamedTuple):
    """A kernel made ready for an algorithm."""

    tensor: Tensor
    algorithm: Algorithm
    rescaling: Rescaling
    put_off: list[tuple[Tensor, Tensor]] | None = None  # factors x and y of gradients that are still to be calculated


def share_kernel(kernel: Kernel) -> Kernel:
    """`kernel` for several passes, which may put off its gradients on a CPU."""
    tensor = kernel.tensor
    if not tensor.requires_grad or tensor.device.type != "cpu" or kernel.algorithm.grad_weight is None:
        return kernel
    kernel = kernel._replace(put_off=[])
    return kernel._replace(tensor=SharedKernel.apply(*kernel))


def convolve(x: Tensor, kernel: Kernel, bias: Tensor | None = None) -> Tensor:
    """[N, I, H, W] -> [N, O, …], or [N, I] -> [N, O]; `bias` [O]."""
    tensor, algorithm, rescaling, put_off = kernel
    if algorithm.grad_weight is None:
        return algorithm.convolve(x, tensor, bias, rescaling)
    return Convolution.apply(x, tensor, None, bias, (algorithm, rescaling, put_off))  # type: ignore[no-any-return]


class Convolution(torch.autograd.Function):
    """A convolution and its two adjoints: from two of image x, prepared kernel and result y, the one that is None.

    The result y alone takes a bias.
    """

    @staticmethod
    def forward(ctx: Any, x: Any, kernel: Any, y: Any, bias: Any, how: tuple[Any, ...]) -> Tensor:  # noqa: PLR0917
        ctx.save_for_backward(x, kernel, y)
        ctx.set_materialize_grads(False)
        ctx.how = how
        algorithm, rescaling, _ = how
        if y is None:
            return algorithm.convolve(x, kernel, bias, rescaling)  # type: ignore[no-any-return]
        adjoint = algorithm.grad_input(y, kernel, rescaling) if x is None else algorithm.grad_weight(x, y, rescaling)
        return adjoint  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, y = (gradient if saved is None else saved for saved in ctx.saved_tensors)
        apply: Callable[..., Tensor] = Convolution.apply
        asked, (_, _, put_off) = ctx.needs_input_grad, ctx.how
        for_x = apply(None, kernel, y, None, ctx.how) if asked[0] else None
        for_kernel = for_bias = None
        if asked[1] and Switches.weight_gradients:
            # One that is differentiated again can't wait, and one of large images need not.
            small = MIN_KERNEL_TO_FACTORS * (x.numel() + y.numel()) <= kernel.numel()
            if put_off is not None and small and not torch.is_grad_enabled():
                put_off.append((x, y))
            else:
                for_kernel = apply(x, None, y, None, ctx.how)
        for_y = apply(x, kernel, None, None, ctx.how) if asked[2] else None
        if asked[3] and Switches.weight_gradients:
            for_bias = y.sum((0, *range(2, y.dim())))
        return for_x, for_kernel, for_y, for_bias, None


class SharedKernel(torch.autograd.Function):
    """The identity; autograd calls its backward pass when all passes that use the kernel have gone backwards.

    Then it adds up the gradients that were put off, by one product of matrices.  D sees reals, fakes, and images
    between them, where it is differentiated twice: each of its kernels gets three gradients or four.  Of small images,
    each is larger than all that it is calculated from, and takes longer to write, read and add than to multiply.
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
