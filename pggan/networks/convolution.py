"""Convolutions, alone or fused with resampling, and wide dense layers: each by the fastest method for its shape.

A method is three functions: the convolution, and its adjoints in the image and in the kernel.  Each is linear in both
of its arguments, so the derivatives of the three are the three themselves, to any order: a gradient penalty never needs
PyTorch's own second derivative, which convolves with whole feature maps as kernels.
N batch, H and W sides, I and O feature maps.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

from pggan.core.architecture import Rescaling
from pggan.networks import fused, im2col, matmul, winograd
from pggan.networks.cached_tensors import disable_fake_tensors
from pggan.networks.deferred_gradients import DeferredGradients, Factors, deferred_gradients_of

WIDE = 128  # feature maps from which Winograd's products outweigh its transformations (docs/performance.md)
MIN_TILES = 16  # in a batch, from which they outweigh the transformation of the kernel
CACHED = 128  # side up to which a transformed image of that width stays in the cache
LARGE = 64  # side from which the CPU's kernel gradient is much faster on planes than on pixels


@dataclass(frozen=True)
class Method:
    """A way to convolve; all functions but `transform` take kernels in the form that `transform` gives them."""

    name: str  # tells methods apart that share their functions
    transform: Callable[[Tensor, Rescaling, float], Tensor]  # kernel [O, I, 3, 3] and its factor, to this method's form
    convolve: Callable[[Tensor, Tensor, Tensor | None, Rescaling], Tensor]  # x [N, I, H, W], kernel, bias [O]
    grad_input: Callable[[Tensor, Tensor, Rescaling], Tensor]  # gradient [N, O, …], kernel
    grad_weight: Callable[[Tensor, Tensor, Rescaling], Tensor]  # x, gradient

    def transforms(self, rescaling: Rescaling) -> bool:
        """Whether `transform` makes a new kernel anyway, so that its factor costs nothing."""
        return rescaling is not Rescaling.same or self.transform is not fuse_resampling


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
    cached = not (torch.compiler.is_compiling() or isinstance(kernel, FakeTensor))
    box = (cached_box if cached else resampling_box)(rescaling, scale, kernel.dtype, kernel.device)
    wide = torch.bmm(box.expand(len(taps), -1, -1), taps)
    return wide.view(len(wide), 4, 4, -1).permute(0, 3, 1, 2)


def resampling_box(rescaling: Rescaling, scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix [16, 9] from the taps of a 3x3 kernel to those of the fused 4x4 kernel, times `scale`."""
    shifts = torch.eye(4, 3, dtype=dtype, device=device)
    shifts = shifts + shifts.roll(1, 0)
    box = torch.kron(shifts, shifts) * scale
    return box.flip(1) if rescaling is Rescaling.up else box / 4  # a transposed convolution mirrors its kernel


@cache
def cached_box(rescaling: Rescaling, scale: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The `resampling_box` [16, 9], made once and kept: on a GPU, its ten operations start slower than they run."""
    with disable_fake_tensors():
        return resampling_box(rescaling, scale, dtype, device)


def convolve(x: Tensor, kernel: Tensor, bias: Tensor | None, rescaling: Rescaling) -> Tensor:
    """The plain convolution, with PyTorch's own derivatives; `kernel` comes from `fuse_resampling`."""
    if rescaling is Rescaling.up:
        return F.conv_transpose2d(x, kernel, bias, stride=2, padding=1)
    return F.conv2d(x, kernel, bias, stride=im2col.side_and_stride(rescaling)[1], padding=1)


def grad_input(gradient: Tensor, kernel: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `convolve` in `x`: a convolution, too."""
    if rescaling is Rescaling.up:
        return F.conv2d(gradient, kernel, stride=2, padding=1)
    return F.conv_transpose2d(gradient, kernel, stride=im2col.side_and_stride(rescaling)[1], padding=1)


def grad_weight(x: Tensor, gradient: Tensor, rescaling: Rescaling) -> Tensor:
    """The adjoint of `convolve` in `kernel`."""
    if x.device.type == "cpu" and x.shape[-1] >= LARGE:
        x, gradient = x.contiguous(), gradient.contiguous()
    side, stride = im2col.side_and_stride(rescaling)
    return _grad_weight(x, gradient, side, stride=stride, padding=1, transposed=rescaling is Rescaling.up)


def _grad_weight(
    x: Tensor, gradient: Tensor, side: int, *, stride: int = 1, padding: int = 0, transposed: bool = False
) -> Tensor:
    features = (x.shape[1], gradient.shape[1]) if transposed else (gradient.shape[1], x.shape[1])
    kernel = x.new_empty(*features, side, side)  # only its shape is used
    strides, paddings, asked = [stride] * 2, [padding] * 2, [False, True, False]
    gradients = torch.ops.aten.convolution_backward(
        gradient, x, kernel, None, strides, paddings, [1, 1], transposed, [0, 0], 1, asked
    )
    return gradients[1]  # type: ignore[no-any-return]


def dense(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """The dense layer [N, I] -> [N, O] of a kernel [O, I]."""
    if x.device.type != "cpu":
        return F.linear(x, kernel, bias)
    # Up to 64 rows, MKL takes a third to nine tenths of the time in the other order.
    onednn = matmul.prefers_onednn()
    result = matmul.mm(x, kernel.t()) if onednn else matmul.mm(kernel, x.t()).t().contiguous()
    return result if bias is None else result.add_(bias)


def convolve_pointwise(x: Tensor, kernel: Tensor, bias: Tensor | None) -> Tensor:
    """The convolution with a kernel [O, I, 1, 1]."""
    if x.device.type == fused.DEVICE:  # such a kernel has no layout: images would pass theirs, which is slow
        x = x.contiguous(memory_format=torch.channels_last)
    return F.conv2d(x, kernel, bias)


NATIVE = Method("native", fuse_resampling, convolve, grad_input, grad_weight)  # with PyTorch's own derivatives
DIRECT = Method("direct", fuse_resampling, convolve, grad_input, grad_weight)
IM2COL = Method("im2col", fuse_resampling, im2col.convolve, im2col.grad_input, im2col.grad_weight)
WINOGRAD = Method("winograd", winograd.transformed, winograd.convolve, winograd.grad_input, winograd.grad_weight)
WINOGRAD2 = Method(  # in tiles of 2x2
    "winograd2",
    partial(winograd.transformed, side=2),
    partial(winograd.convolve, side=2),
    partial(winograd.grad_input, side=2),
    partial(winograd.grad_weight, side=2),
)
MATMUL = Method(  # of a dense layer, x [N, I] and kernel [O, I]
    "matmul",
    fuse_resampling,
    lambda x, kernel, bias, rescaling: dense(x, kernel, bias),
    lambda gradient, kernel, rescaling: matmul.mm(gradient, kernel),
    lambda x, gradient, rescaling: matmul.mm(gradient.t(), x),
)
POINTWISE = Method(  # of 1x1 kernels [O, I, 1, 1]
    "pointwise",
    fuse_resampling,
    lambda x, kernel, bias, rescaling: convolve_pointwise(x, kernel, bias),
    lambda gradient, kernel, rescaling: F.conv_transpose2d(gradient, kernel),
    lambda x, gradient, rescaling: _grad_weight(x, gradient, 1),
)


def method_for(x: Tensor, kernel: Tensor, rescaling: Rescaling) -> Method:
    """The method that the heuristic names for images `x` [N, I, H, W] and a kernel [O, I, 3, 3].

    The heuristic's constants come from one processor; `MethodTable` has what was measured on this one.
    """
    if torch.compiler.is_compiling():
        return NATIVE
    if x.device.type != "cpu":
        return DIRECT
    if x.dtype.itemsize >= 4 and min(kernel.shape[:2]) >= WIDE and x.shape[-1] <= CACHED:
        stride = winograd.tile_stride(rescaling)
        if len(x) * (x.shape[2] // stride) * (x.shape[3] // stride) < MIN_TILES:
            return IM2COL
        if winograd.has_whole_tiles(x, rescaling):
            return WINOGRAD
    return plain_method(x)


def plain_method(x: Tensor) -> Method:
    """PyTorch's convolutions of images `x` [N, I, H, W] on a CPU, with the derivatives that are faster there."""
    return DIRECT if x.shape[-1] >= LARGE else NATIVE


def convolution(x: Tensor, kernel: Tensor, bias: Tensor | None, method: Method, rescaling: Rescaling) -> Tensor:
    """[N, I, H, W] -> [N, O, …] with a `kernel` in the method's form and a `bias` [O]."""
    if method is NATIVE:
        return convolve(x, kernel, bias, rescaling)
    return Convolution.apply(x, kernel, None, bias, (method, rescaling, deferred_gradients_of(kernel)))  # type: ignore[no-any-return]


def linear(x: Tensor, kernel: Tensor, bias: Tensor | None, method: Method | None) -> Tensor:
    """[N, I] -> [N, O]; `method`: that of the convolutions, where the options name one."""
    # PyTorch's gradients of a kernel that is used several times come in several layouts, which it can't add in place:
    # for 8192x512 weights the sums take longer than the gradients.
    if method is NATIVE or min(kernel.shape) < WIDE or torch.compiler.is_compiling():
        return F.linear(x, kernel, bias)
    return convolution(x, kernel, bias, MATMUL, Rescaling.same)


def pointwise(x: Tensor, kernel: Tensor, bias: Tensor | None, method: Method | None) -> Tensor:
    """[N, I, H, W] -> [N, O, H, W], every pixel by itself; `method` as in `linear`."""
    # On CPUs PyTorch's own second derivative of these is as fast, and its first one faster.
    if method is NATIVE or torch.compiler.is_compiling() or (method is None and x.device.type == "cpu"):
        return F.conv2d(x, kernel, bias)
    return convolution(x, kernel, bias, POINTWISE, Rescaling.same)


_grad_weights = True  # whether backward passes compute them; global, as autograd runs them in threads of its own


@contextmanager
def input_gradients_only() -> Iterator[None]:
    """Inside, backward passes leave out the gradients of weights, which `torch.autograd.grad` of images would drop.

    PyTorch tells its own functions which gradients are asked for, but not those written in Python.
    """
    global _grad_weights  # noqa: PLW0603
    _grad_weights = False
    try:
        yield
    finally:
        _grad_weights = True


def asks_weight_gradients() -> bool:
    """Whether a backward pass is to compute the gradients of weights."""
    return _grad_weights


class Convolution(torch.autograd.Function):
    """A convolution and its two adjoints: from two of image x, transformed kernel and result y, the one that is None.

    The result y alone takes a bias.
    """

    @staticmethod
    def forward(
        x: Any, kernel: Any, y: Any, bias: Tensor | None, how: tuple[Method, Rescaling, DeferredGradients | None]
    ) -> Tensor:
        method, rescaling, _ = how
        if y is None:
            return method.convolve(x, kernel, bias, rescaling)
        return method.grad_input(y, kernel, rescaling) if x is None else method.grad_weight(x, y, rescaling)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:3])
        ctx.save_for_forward(*inputs[:3])
        ctx.set_materialize_grads(False)
        ctx.how = inputs[4]

    @staticmethod
    def jvp(ctx: Any, x: Tensor | None, kernel: None, y: None, bias: None, _: None) -> Tensor:
        """Only images have tangents: forward-mode AD serves gradient penalties."""
        assert kernel is y is bias is None
        return Convolution.apply(x, ctx.saved_tensors[1], None, None, ctx.how)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, kernel, y = (gradient if saved is None else saved for saved in ctx.saved_tensors)
        apply: Callable[..., Tensor] = Convolution.apply
        asked, weights, (method, rescaling, deferred) = ctx.needs_input_grad, _grad_weights, ctx.how
        for_x = apply(None, kernel, y, None, ctx.how) if asked[0] else None
        for_kernel = None
        if asked[1] and weights:
            product = partial(method.grad_weight, rescaling=rescaling)
            if deferred is None or not deferred.defer(kernel, Factors(x, y, product)):
                for_kernel = apply(x, None, y, None, ctx.how)
        for_y = apply(x, kernel, None, None, ctx.how) if asked[2] else None
        for_bias = y.sum((0, *range(2, y.dim()))) if asked[3] and weights else None
        return for_x, for_kernel, for_y, for_bias, None
