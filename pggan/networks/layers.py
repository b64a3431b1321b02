"""Layers with an equalised learning rate, and the minibatch standard deviation (stddev).

N batch, I and O input and output feature maps, C channels, R resolution.
Source: paper sections 3 and 4.1; constants as in the official code.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from pggan.core.architecture import Rescaling
from pggan.networks.activation import Activation, adds_bias, to_float32
from pggan.networks.convolution import NATIVE, WIDE, Method, convolution, linear, pointwise
from pggan.networks.deferred_gradients import shared_kernel
from pggan.networks.fade import blur
from pggan.networks.numerics import ComputeOptions

HE_GAIN = sqrt(2.0)  # He et al. 2015, for rectified activations
DEFAULT_OPTIONS = ComputeOptions()
EPSILON = 1e-8  # under the root of the minibatch stddev, as in the official code


def minibatch_stddev(features: Tensor, group: int, sub_batches: int = 1) -> Tensor:
    """The mean standard deviation over the group of each image, in float32: [N, C, R, R] -> [N].  (paper section 3)

    Groups are strided: of M groups, group m holds the images m, m + M, m + 2M, …  A batch made of `sub_batches` (P) of
    one size has groups of its own in each.
    """
    size = min(group, len(features) // sub_batches)
    grouped = to_float32(features).reshape(sub_batches, size, -1, *features.shape[1:])  # [P, G, M, C, R, R]
    centered = grouped - grouped.mean(1, keepdim=True)
    deviation = (centered.square().mean(1, keepdim=True) + EPSILON).sqrt()  # [P, 1, M, C, R, R], biased variance
    return deviation.mean((3, 4, 5)).expand(-1, size, -1).flatten()


@dataclass
class LayerContext:
    """How a layer computes: set by `use_options` at every pass, for which a module's own attributes are too slow."""

    options: ComputeOptions = DEFAULT_OPTIONS
    cache: dict[tuple[float, Method | None], tuple[Tensor, ...]] | None = None  # what `weights_for` gave for these


class Equalized(nn.Module):
    """A layer whose weight ~ N(0, 1) is scaled at run time by gain / sqrt(fan-in).  (paper section 4.1)"""

    def __init__(self, *shape: int, gain: float = HE_GAIN, bias: int | None = None) -> None:
        """Args: shape: of the weight, outputs first; bias: its length where it is not the number of outputs."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0] if bias is None else bias))
        self.scale = gain / sqrt(self.weight[0].numel())
        self.context = LayerContext()

    @property
    def dtype(self) -> torch.dtype:
        """The precision this layer computes in."""
        return self.context.options.dtype or self.weight.dtype

    def fold_scale(self, x: Tensor) -> tuple[Tensor, float]:
        """`x` and the factor left for the weight: the scale goes to the smaller, or to a weight that is cast anyway."""
        free_batch = torch.compiler.is_exporting()  # no choice may depend on its size then
        if x.dtype == self.weight.dtype and not free_batch and x.numel() < self.weight.numel():
            return x * self.scale, 1.0
        return x, self.scale

    def operands(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`x`, weight and bias in this layer's precision, one of the first two scaled."""
        x, scale = self.fold_scale(x.to(self.dtype))
        weight, bias = self.weights_for(scale)
        return x, weight, bias

    def prepare(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        """The tensors that `forward` uses: the weight times `scale`, in the form of `method`, and the bias."""
        return (self.weight if scale == 1 else self.weight * scale), self.bias

    def weights_for(self, scale: float, method: Method | None = None) -> tuple[Tensor, ...]:
        """The tensors that `prepare` gives, in this layer's precision; prepared once inside `use_options`."""
        key, cache = (scale, method), self.context.cache
        if cache is not None and key in cache:
            return cache[key]
        if cache is None:
            return tuple(self.cast(tensor) for tensor in self.prepare(scale, method))
        # A later use may need a gradient, which what is made under a transform of `torch.func` does not have.
        with torch.enable_grad(), temporarily_clear_interpreter_stack():
            kernel, *others = (self.cast(tensor) for tensor in self.prepare(scale, method))
            shares = method is not NATIVE and min(self.weight.shape[:2]) >= WIDE
            cache[key] = (shared_kernel(kernel) if shares else kernel, *others)
        return cache[key]

    def cast(self, tensor: Tensor) -> Tensor:
        """`tensor` in this layer's precision, but for a bias that an activation adds: it takes any precision."""
        return tensor if tensor is self.bias and adds_bias(tensor) else tensor.to(self.dtype)

    def finish(self, layer: Callable[[Tensor | None], Tensor], bias: Tensor, activation: Activation | None) -> Tensor:
        """The result of `layer`, a function of the bias that it is to add, and of the `activation` that follows it."""
        if activation is None:
            return layer(bias.to(self.dtype))
        return activation(layer(None), bias) if adds_bias(bias) else activation(layer(bias), None)


class EqualizedLinear(Equalized):
    """A dense layer.  [N, I] -> [N, O]"""

    def forward(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        x, weight, bias = self.operands(x)
        return self.finish(lambda bias: linear(x, weight, bias, self.context.options.method), bias, activation)


class OutputLinear(EqualizedLinear):
    """The last layer of D: always in the precision of its weight."""

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype


class PointwiseConv(Equalized):
    """A 1x1 convolution.  [N, I, R, R] -> [N, O, R, R]"""

    def forward(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        x, weight, bias = self.operands(x)
        return self.finish(lambda bias: pointwise(x, weight, bias, self.context.options.method), bias, activation)


class EqualizedConv(Equalized):
    """A 3x3 convolution.  [N, I, R, R] -> [N, O, R, R], or [N, O, 2R, 2R] or [N, O, R/2, R/2] by its rescaling"""

    def __init__(self, *shape: int, rescaling: Rescaling = Rescaling.same, blur: bool = False) -> None:
        """Args: blur: smooth the result, before the activation."""
        super().__init__(*shape)
        self.rescaling, self.blur = rescaling, blur

    def prepare(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        assert method is not None, "a convolution needs one"
        return method.transform(self.weight, self.rescaling, scale), self.bias

    def forward(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        x, scale = x.to(self.dtype), self.scale
        options = self.context.options
        method = options.method or options.method_table.method_for(x, self.weight, self.rescaling)
        if not method.transforms(self.rescaling):
            x, scale = self.fold_scale(x)
        kernel, bias = self.weights_for(scale, method)

        def layer(bias: Tensor | None) -> Tensor:  # smoothing a bias does not change it
            result = convolution(x, kernel, bias, method, self.rescaling)
            return blur(result) if self.blur else result

        return self.finish(layer, bias, activation)


class ConvWithStddev(EqualizedConv):
    """A 3x3 convolution of 4x4 features and of one more map, the constant stddev.  [N, I, 4, 4], [N] -> [N, O, 4, 4]

    A constant map needs no convolution, only the sums of its taps; and I stays a power of two, which is fast.
    """

    def prepare(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        """The features' kernel, the bias and the sums of the map's taps [O, 4, 4], from a weight [O, I + 1, 3, 3]."""
        assert method is not None, "a convolution needs one"
        # One operation, along the last dimension in memory: the gradients of slices would be padded copies.
        blocks = torch.split(self.weight.permute(0, 2, 3, 1), [self.weight.shape[1] - 1, 1], 3)
        features, taps = (block.permute(0, 3, 1, 2) for block in blocks)
        sums = F.conv2d(taps.new_ones(1, 1, 4, 4), taps * scale, padding=1)[0]
        return method.transform(features, self.rescaling, scale), self.bias, sums

    def forward(self, x: Tensor, stddev: Tensor, activation: Activation | None = None) -> Tensor:  # type: ignore[override]
        x = x.to(self.dtype)
        options = self.context.options
        method = options.method or options.method_table.method_for(x, self.weight[:, :-1], self.rescaling)
        kernel, bias, sums = self.weights_for(self.scale, method)

        def layer(bias: Tensor | None) -> Tensor:
            result = convolution(x, kernel, bias, method, self.rescaling)
            return result + stddev.to(x.dtype)[:, None, None, None] * sums

        return self.finish(layer, bias, activation)
