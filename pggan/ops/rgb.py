"""Layers between images of up to 4 channels and feature maps, on GPUs: one pass over memory for each direction.

From RGB: a 1x1 convolution, bias and leaky ReLU, differentiable twice.  To RGB: a 1x1 convolution and bias.  Images are
float32 in any layout, feature maps are channels-last.  The plain twin is `Equalized.forward` without these kernels.
Shapes: N batch size, C channels, F feature maps, H height, W width.
"""

from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from pggan.ops import fused
from pggan.ops.convolution import Switches
from pggan.ops.fused import LEAKY_SLOPE, Slot, dense, launch, pixels_of

MOST_CHANNELS = 4  # of an image, because each thread holds all channels of a pixel


class Layer(NamedTuple):
    """What all passes of a layer need to know, besides tensors."""

    to_rgb: bool
    scale: float  # multiplies the weight
    dtype: torch.dtype  # of the feature maps
    slots: tuple[Slot, Slot]  # where backward passes put the gradients of weight and bias aside


def steps(images: Tensor, weight: Tensor, layer: Layer) -> tuple[int, ...]:
    """How far apart pixels, channels and weights are in memory, as the Triton kernels need it."""
    of_weight = weight.stride()[1::-1] if layer.to_rgb else weight.stride()[:2]
    return images.shape[2] * images.shape[3], images.stride(0), images.stride(3), images.stride(1), *of_weight


def widen(images: Tensor, weight: Tensor, bias: Tensor | None, y: Tensor | None, layer: Layer) -> Tensor:
    """The 1x1 convolution [N, F, H, W] of `images` [N, C, H, W]; `triton_kernels.widen` says what `bias` and `y` do."""
    shape = (len(images), weight.shape[1 if layer.to_rgb else 0], *images.shape[2:])
    result = torch.empty(shape, dtype=layer.dtype, device=images.device, memory_format=torch.channels_last)
    others = images, weight, bias, y, layer.scale, *steps(images, weight, layer)
    launch("widen", result, *others, SLOPE=LEAKY_SLOPE, CHANNELS=images.shape[1])
    return result


def narrow(
    wide: Tensor, y: Tensor | None, operands: tuple[Tensor, Tensor | None, Tensor], layer: Layer, **results: Any
) -> None:
    """The adjoint of `widen`: `triton_kernels.narrow` says what `operands` (weight, bias, images) and `results` are."""
    (weight, bias, images), wide, (_, tiles) = operands, dense(wide), pixels_of(wide)
    wanted = [results.get(name) for name in ("images", "of_weight", "of_bias")]
    pitch = layer.slots[0].sums.pitch
    others = y, weight, bias, images, *wanted, layer.scale, pitch, *steps(images, weight, layer)
    launch("narrow", wide, *others, each=ceil(tiles / fused.PROGRAMS), SLOPE=LEAKY_SLOPE, CHANNELS=images.shape[1])


def evenly_spaced(images: Tensor) -> Tensor:
    """The `images` [N, C, H, W] themselves if all their pixels are equally far apart in memory, else a copy."""
    return images if images.stride(2) == images.shape[3] * images.stride(3) else images.contiguous()


class FromRgb(torch.autograd.Function):
    """The leaky ReLU of the 1x1 convolution of images [N, C, H, W] plus bias: [N, F, H, W].  Differentiable twice."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, weight: Tensor, bias: Tensor, layer: Layer) -> Tensor:
        images, ctx.layer = evenly_spaced(images), layer
        y = widen(images, weight, bias, None, layer)
        ctx.save_for_backward(images, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        images, weight, y = ctx.saved_tensors
        asked = ctx.needs_input_grad[0] and Switches.image_gradients, ctx.needs_input_grad[1]
        return FromRgbGradient.apply(gradient, images, weight, y.detach(), ctx.layer, asked), None, None, None


class FromRgbGradient(torch.autograd.Function):
    """The gradient of the images of `FromRgb`; puts the gradients of weight and bias aside."""

    @staticmethod
    def forward(  # noqa: PLR0917 - autograd accepts no keyword arguments
        ctx: Any, gradient: Tensor, images: Tensor, weight: Tensor, y: Tensor, layer: Layer, asked: tuple[bool, bool]
    ) -> Tensor | None:
        ctx.save_for_backward(gradient, weight, y)
        ctx.layer = layer
        result = torch.empty_like(images) if asked[0] else None
        rows = [slot.rows(y) for slot in layer.slots] if asked[1] and Switches.weight_gradients else [None, None]
        operands = weight, None, images
        narrow(gradient, y, operands, layer, images=result, of_weight=rows[0], of_bias=rows[1])
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_images: Tensor) -> tuple[Tensor | None, ...]:
        (gradient, weight, y), of_images, layer = ctx.saved_tensors, evenly_spaced(of_images), ctx.layer
        if ctx.needs_input_grad[2] and Switches.weight_gradients:
            narrow(gradient, y, (weight, None, of_images), layer, of_weight=layer.slots[0].rows(y))
        return widen(of_images, weight, None, y, layer), None, None, None, None, None


class ToRgb(torch.autograd.Function):
    """The 1x1 convolution of features [N, F, H, W] plus bias, as images [N, C, H, W] in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, layer: Layer) -> Tensor:
        x, ctx.layer = dense(x), layer
        ctx.save_for_backward(x, weight)
        images = torch.empty(len(x), len(weight), *x.shape[2:], device=x.device)
        narrow(x, None, (weight, bias, images), layer, images=images)
        return images

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, None, None]:
        (x, weight), gradient, (first, second) = ctx.saved_tensors, evenly_spaced(gradient), ctx.layer.slots
        if ctx.needs_input_grad[1] and Switches.weight_gradients:
            rows = {"of_weight": first.rows(x), "of_bias": second.rows(x)}
            narrow(x, None, (weight, None, gradient), ctx.layer, **rows)
        return widen(gradient, weight, None, None, ctx.layer), None, None, None
