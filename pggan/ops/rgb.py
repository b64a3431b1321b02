"""From-RGB and to-RGB layers in Triton, which convert images of up to 3 channels to feature maps, and back.

Each layer passes over memory once.  Images are float32 in any memory layout; feature maps are channels-last.
Shapes: N batch size, C channels, F feature maps, H height, W width.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.ops import fused
from pggan.ops.convolution import Switches
from pggan.ops.fused import LEAKY_SLOPE, Rows, dense, launch_tiles

MOST_CHANNELS = 3  # the Triton kernel `narrow` adds up the gradients of at most three image channels
Operands = tuple[Tensor, Tensor | None, Tensor]  # weight, bias, images


class Layer(NamedTuple):
    """The settings of a from-RGB or to-RGB layer."""

    to_rgb: bool
    scale: float  # multiplies the weight
    dtype: torch.dtype  # dtype of the feature maps
    rows: Sequence[Rows]  # two functions, which return buffers to which Triton adds the gradients of weight and bias


def steps(images: Tensor, weight: Tensor, layer: Layer) -> tuple[int, ...]:
    """The number of pixels per image, and the memory strides of `images` and `weight`."""
    of_weight = weight.stride()[1::-1] if layer.to_rgb else weight.stride()[:2]
    return images.shape[2] * images.shape[3], images.stride(0), images.stride(3), images.stride(1), *of_weight


def widen(images: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor | None, layer: Layer) -> Tensor:
    """Launch the Triton kernel `widen`: a 1x1 convolution from `images` [N, C, H, W] to feature maps [N, F, H, W]."""
    shape = (len(images), weight.shape[1 if layer.to_rgb else 0], *images.shape[2:])
    result = torch.empty(shape, dtype=layer.dtype, device=images.device, memory_format=torch.channels_last)
    others = images, weight, bias, y, layer.scale, *steps(images, weight, layer)
    launch_tiles("widen", result, *others, SLOPE=LEAKY_SLOPE, CHANNELS=images.shape[1])
    return result


def narrow(wide: Tensor, y: Tensor | None, operands: Operands, layer: Layer, *results: Tensor | None) -> None:
    """Launch the Triton kernel `narrow`: set `results[0]` to images, add weight and bias gradients to `results[1:]`."""
    (weight, bias, images), (_, of_weight, _) = operands, results
    pitch = 0 if of_weight is None else of_weight.stride(0)
    others = y, weight, bias, images, *results, layer.scale, pitch, *steps(images, weight, layer)
    launch_tiles("narrow", dense(wide), *others, most=fused.PROGRAMS, SLOPE=LEAKY_SLOPE, CHANNELS=images.shape[1])


def without_gaps(images: Tensor) -> Tensor:
    """Return `images` [N, C, H, W], copied if they are neither contiguous nor channels-last."""
    return images if images.is_contiguous(memory_format=torch.channels_last) else images.contiguous()


class FromRgb(torch.autograd.Function):
    """1x1 convolution, bias and leaky ReLU, differentiable twice.  [N, C, H, W] -> [N, F, H, W]"""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, layer: Layer) -> Tensor:
        images, ctx.layer = without_gaps(images), layer
        y = widen(images, weight, bias, None, layer)
        ctx.save_for_backward(images, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        images, weight, y = ctx.saved_tensors
        asked = ctx.needs_input_grad[0] and Switches.image_gradients, ctx.needs_input_grad[1]
        return FromRgbGradient.apply(gradient, images, weight, y.detach(), ctx.layer, asked), None, None, None


class FromRgbGradient(torch.autograd.Function):
    """Backward pass of `FromRgb`: returns the images' gradient; adds weight and bias gradients to `layer`'s buffers."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd accepts no keyword arguments
        ctx: Any, gradient: Tensor, images: Tensor, weight: Tensor, y: Tensor, layer: Layer, asked: tuple[bool, bool]
    ) -> Tensor | None:
        ctx.save_for_backward(gradient, weight, y)
        ctx.layer = layer
        result = torch.empty_like(images) if asked[0] else None
        rows = [of() for of in layer.rows] if asked[1] and Switches.weight_gradients else [None, None]
        narrow(gradient, y, (weight, None, images), layer, result, *rows)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_images: Tensor) -> tuple[Tensor | None, ...]:
        (gradient, weight, y), of_images, layer = ctx.saved_tensors, without_gaps(of_images), ctx.layer
        if ctx.needs_input_grad[2] and Switches.weight_gradients:
            narrow(gradient, y, (weight, None, of_images), layer, None, layer.rows[0](), None)
        return widen(of_images, weight, None, y, layer), None, None, None, None, None


class ToRgb(torch.autograd.Function):
    """1x1 convolution and bias, in float32, differentiable once.  [N, F, H, W] -> [N, C, H, W]"""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: Layer) -> Tensor:
        x, ctx.layer = dense(x), layer
        ctx.save_for_backward(x, weight)
        images = torch.empty(len(x), len(weight), *x.shape[2:], device=x.device)
        narrow(x, None, (weight, bias, images), layer, images, None, None)
        return images

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x, weight), gradient = ctx.saved_tensors, without_gaps(gradient)
        if ctx.needs_input_grad[1] and Switches.weight_gradients:
            narrow(x, None, (weight, None, gradient), ctx.layer, None, *(of() for of in ctx.layer.rows))
        return widen(gradient, weight, None, None, ctx.layer), None, None, None
