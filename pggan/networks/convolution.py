"""Convolutions, alone or fused with resampling, and wide dense layers: each by the fastest method for its shape.

Every method is three functions: the convolution, and its adjoints in the image and in the kernel.  Each is linear in
both of its arguments, so the derivatives of the three are the three themselves, to any order: a gradient penalty never
meets PyTorch's own second derivative, which convolves with whole feature maps as kernels.
N batch, H and W sides, I and O feature maps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.architecture import Geometry
from pggan.networks import im2col, winograd

WIDE = 128  # feature maps from which Winograd's products outweigh its transformations (docs/performance.md)
TILES = 64  # in a batch, from which they outweigh the transformation of the kernel
CACHED = 128  # side up to which a transformed image of that width stays in the cache
LARGE = 64  # side from which the CPU's kernel gradient is much faster on planes than on pixels


@dataclass(frozen=True)
class Method:
    """A way to convolve.  `geometry` is that of the convolution; kernels are as `transform` gives them."""

    name: str  # tells methods apart that share their functions
    transform: Callable[[Tensor, Geometry, float], Tensor]  # kernel [O, I, 3, 3] and its factor, to this method's form
    convolve: Callable[[Tensor, Tensor, Tensor | None, Geometry], Tensor]  # x [N, I, H, W], kernel, bias [O]
    input_gradient: Callable[[Tensor, Tensor, Geometry], Tensor]  # gradient [N, O, …], kernel
    kernel_gradient: Callable[[Tensor, Tensor, Geometry], Tensor]  # x, gradient

    def transforms(self, geometry: Geometry) -> bool:
        """Whether `transform` makes a new kernel in any case, so that its factor costs nothing."""
        return geometry is not Geometry.same or self.transform is winograd.transformed


def fuse_resampling(kernel: Tensor, geometry: Geometry, scale: float) -> Tensor:
    """A kernel [O, I, 3, 3] times `scale`, fuse_resampling with the resampling: [O, I, 3, 3] or 4x4, for `up` [I, O, 4, 4].

    The fuse_resampling kernel is the sum of four one-pixel shifts.  It is made as a product of matrices, with its output maps
    side by side as convolutions want them: the derivative of sums of slices takes ten times as long.
    """
    if geometry is Geometry.same:
        return kernel if scale == 1 else kernel * scale
    taps = kernel.permute(0, 2, 3, 1).flatten(1, 2)  # [O, 9, I]
    shifts = torch.eye(4, 3, dtype=kernel.dtype, device=kernel.device)
    shifts = shifts + shifts.roll(1, 0)
    box = torch.kron(shifts, shifts) * scale  # [16, 9]
    if geometry is Geometry.up:
        box = box.flip(1)  # a transposed convolution mirrors its kernel
        taps = taps.flatten(1).t().contiguous().view(9, -1, len(taps)).transpose(0, 1)  # [I, 9, O]
    else:
        box = box / 4
    wide = torch.bmm(box.expand(len(taps), -1, -1), taps)
    return wide.view(len(wide), 4, 4, -1).permute(0, 3, 1, 2)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """The plain convolution, with PyTorch's own derivatives; `kernel` comes from `fuse_resampling`."""
    if geometry is Geometry.up:
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)
    return F.conv2d(x, kernel, bias, stride=1 if geometry is Geometry.same else 2, padding=1)


def input_gradient(gradient: Tensor, kernel: Tensor, geometry: Geometry) -> Tensor:
    """The adjoint of `convolve` in `x`: a convolution, too."""
    if geometry is Geometry.up:
        return F.conv2d(gradient, kernel, stride=2, padding=1)
    stride = 1 if geometry is Geometry.same else 2
    return F.conv_transpose2d(gradient, kernel, stride=stride, padding=1)


def kernel_gradient(x: Tensor, gradient: Tensor, geometry: Geometry) -> Tensor:
    """The adjoint of `convolve` in `kernel`."""
    if x.device.type == "cpu" and x.shape[-1] >= LARGE:
        x, gradient = x.contiguous(), gradient.contiguous()
    up, side = geometry is Geometry.up, 3 if geometry is Geometry.same else 4
    features = (x.shape[1], gradient.shape[1]) if up else (gradient.shape[1], x.shape[1])
    kernel = x.new_empty(*features, side, side)  # only its shape is looked at
    stride = [1, 1] if geometry is Geometry.same else [2, 2]
    asked = [False, True, False]
    result: Tensor = torch.ops.aten.convolution_backward(
        gradient, x, kernel, None, stride, [1, 1], [1, 1], up, [0, 0], 1, asked
    )[1]
    return result


def matmul(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """[N, I] -> [N, O]"""
    if x.device.type != "cpu":
        return F.linear(x, kernel, bias)
    result = (kernel @ x.t()).t().contiguous()  # for up to 64 rows this way round takes a third to nine tenths of it
    return result if bias is None else result.add_(bias)


def pointwise_kernel_gradient(x: Tensor, gradient: Tensor) -> Tensor:
    """[O, I, 1, 1]"""
    kernel = x.new_empty(gradient.shape[1], x.shape[1], 1, 1)  # only its shape is looked at
    asked = [False, True, False]
    result: Tensor = torch.ops.aten.convolution_backward(
        gradient, x, kernel, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1, asked
    )[1]
    return result


NATIVE = Method("native", fuse_resampling, convolve, input_gradient, kernel_gradient)  # with PyTorch's own derivatives
DIRECT = Method("direct", fuse_resampling, convolve, input_gradient, kernel_gradient)
IM2COL = Method("im2col", fuse_resampling, im2col.convolve, im2col.input_gradient, im2col.kernel_gradient)
WINOGRAD = Method(
    "winograd", winograd.transformed, winograd.convolve, winograd.input_gradient, winograd.kernel_gradient
)
MATMUL = Method(  # of a dense layer, x [N, I] and kernel [O, I]
    "matmul",
    lambda kernel, geometry, scale: kernel * scale,
    lambda x, kernel, bias, geometry: matmul(x, kernel, bias),
    lambda gradient, kernel, geometry: gradient @ kernel,
    lambda x, gradient, geometry: gradient.t() @ x,
)
POINTWISE = Method(  # of 1x1 kernels [O, I, 1, 1]
    "pointwise",
    lambda kernel, geometry, scale: kernel * scale,
    lambda x, kernel, bias, geometry: F.conv2d(x, kernel, bias),
    lambda gradient, kernel, geometry: F.conv_transpose2d(gradient, kernel),
    lambda x, gradient, geometry: pointwise_kernel_gradient(x, gradient),
)


def method_for(x: Tensor, kernel: Tensor, geometry: Geometry) -> Method:
    """The fastest method here for images `x` [N, I, H, W] and a kernel [O, I, 3, 3], as measured."""
    if torch.compiler.is_compiling():
        return NATIVE
    if x.device.type != "cpu":
        return DIRECT
    if x.dtype.itemsize >= 4 and min(kernel.shape[:2]) >= WIDE and x.shape[-1] <= CACHED:
        stride = 2 if geometry is Geometry.up else 4
        tiles = len(x) * (x.shape[2] // stride) * (x.shape[3] // stride)
        if tiles < TILES:
            return IM2COL
        if x.shape[2] % stride == x.shape[3] % stride == 0:
            return WINOGRAD
    return DIRECT if x.shape[-1] >= LARGE else NATIVE


def convolution(x: Tensor, kernel: Tensor, bias: Tensor, method: Method, geometry: Geometry) -> Tensor:
    """[N, I, H, W] -> [N, O, …]; `kernel` in the method's form, `bias` [O]."""
    if method is NATIVE:
        return convolve(x, kernel, bias, geometry)
    result: Tensor = Convolution.apply(x, kernel, bias, method, geometry)  # type: ignore[no-untyped-call]
    return result


def linear(x: Tensor, kernel: Tensor, bias: Tensor | None, method: Method | None) -> Tensor:
    """[N, I] -> [N, O]; `method`: the convolutions', where one is asked for.

    PyTorch's gradients of a kernel that is used several times come in several layouts, which it can't add in place: for
    8192x512 weights the sums take longer than the gradients.
    """
    if method is NATIVE or min(kernel.shape) < WIDE or torch.compiler.is_compiling():
        return F.linear(x, kernel, bias)
    result: Tensor = Convolution.apply(x, kernel, bias, MATMUL, Geometry.same)  # type: ignore[no-untyped-call]
    return result


def pointwise(x: Tensor, kernel: Tensor, bias: Tensor, method: Method | None) -> Tensor:
    """[N, I, H, W] -> [N, O, H, W], every pixel by itself; `method`: the convolutions', where one is asked for.

    A CPU is as fast at PyTorch's second derivative of these, and faster at the first.
    """
    if method is NATIVE or torch.compiler.is_compiling() or (method is None and x.device.type == "cpu"):
        return F.conv2d(x, kernel, bias)
    result: Tensor = Convolution.apply(x, kernel, bias, POINTWISE, Geometry.same)  # type: ignore[no-untyped-call]
    return result


_weight_gradients = True  # whether backward passes are to give them; seen by all threads, of which autograd has its own


@contextmanager
def input_gradients_only() -> Iterator[None]:
    """Inside, backward passes leave out the gradients of weights, which `torch.autograd.grad` of images would drop.

    PyTorch tells its own functions which gradients are asked for, but not those written in Python.
    """
    global _weight_gradients  # noqa: PLW0603
    _weight_gradients = False
    try:
        yield
    finally:
        _weight_gradients = True


def remember(ctx: Any, one: Tensor, other: Tensor, method: Method, geometry: Geometry) -> None:
    ctx.save_for_backward(one, other)
    ctx.save_for_forward(one, other)
    ctx.set_materialize_grads(False)
    ctx.method, ctx.geometry = method, geometry


class Convolution(torch.autograd.Function):
    """x, transformed kernel, bias or None, method, geometry -> [N, O, …]"""

    @staticmethod
    def forward(x: Tensor, kernel: Tensor, bias: Tensor | None, method: Method, geometry: Geometry) -> Tensor:
        return method.convolve(x, kernel, bias, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        remember(ctx, inputs[0], inputs[1], *inputs[3:])

    @staticmethod
    def jvp(ctx: Any, x: Tensor | None, kernel: None, bias: None, *_: None) -> Tensor:
        """Only images have tangents: forward-mode AD serves gradient penalties."""
        assert kernel is None
        assert bias is None
        return Convolution.apply(x, ctx.saved_tensors[1], None, ctx.method, ctx.geometry)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel = ctx.saved_tensors
        method = ctx.method, ctx.geometry
        for_x = InputGradient.apply(gradient, kernel, *method) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        for_kernel = for_bias = None
        if ctx.needs_input_grad[1] and _weight_gradients:
            for_kernel = KernelGradient.apply(x, gradient, *method)  # type: ignore[no-untyped-call]
        if ctx.needs_input_grad[2] and _weight_gradients:
            for_bias = gradient.sum((0, *range(2, gradient.dim())))
        return for_x, for_kernel, for_bias, None, None


class InputGradient(torch.autograd.Function):
    """gradient [N, O, …], transformed kernel, method, geometry -> [N, I, H, W]"""

    @staticmethod
    def forward(gradient: Tensor, kernel: Tensor, method: Method, geometry: Geometry) -> Tensor:
        return method.input_gradient(gradient, kernel, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        remember(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor) -> tuple[Tensor | None, ...]:
        gradient, kernel = ctx.saved_tensors
        method = ctx.method, ctx.geometry
        for_gradient = Convolution.apply(tangent, kernel, None, *method) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        for_kernel = KernelGradient.apply(tangent, gradient, *method) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return for_gradient, for_kernel, None, None


class KernelGradient(torch.autograd.Function):
    """x [N, I, H, W], gradient [N, O, …], method, geometry -> the transformed kernel's gradient"""

    @staticmethod
    def forward(x: Tensor, gradient: Tensor, method: Method, geometry: Geometry) -> Tensor:
        return method.kernel_gradient(x, gradient, geometry)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        remember(ctx, *inputs)

    @staticmethod
    def backward(ctx: Any, kernel: Tensor) -> tuple[Tensor | None, ...]:
        x, gradient = ctx.saved_tensors
        method = ctx.method, ctx.geometry
        for_x = InputGradient.apply(gradient, kernel, *method) if ctx.needs_input_grad[0] else None  # type: ignore[no-untyped-call]
        for_gradient = Convolution.apply(x, kernel, None, *method) if ctx.needs_input_grad[1] else None  # type: ignore[no-untyped-call]
        return for_x, for_gradient, None, None
