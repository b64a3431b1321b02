"""Layers with an equalised learning rate, and minibatch standard deviation.

Shapes: N batch, I and O input and output feature maps, C channels, R resolution.
Source: paper sections 3 and 4.1; constants as in the official code.
"""

from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.architecture import Geometry
from pggan.networks.activation import to_float32
from pggan.networks.convolution import Method, convolution, linear, method_for, pointwise
from pggan.networks.numerics import ComputeOptions

HE_GAIN = sqrt(2.0)  # He et al. 2015, for rectified activations
DEFAULT_OPTIONS = ComputeOptions()
EPSILON = 1e-8  # under the root of minibatch stddev, as in the official code


def minibatch_stddev(features: Tensor, group: int, parts: int = 1) -> Tensor:
    """The average standard deviation over the group of each image, in float32.  (paper section 3)

    Groups are strided: of M groups, group m holds the images m, m + M, m + 2M, …
    A batch made of `parts` (P) equal ones has groups of its own in each.
    [N, C, R, R] -> [N]
    """
    size = min(group, len(features) // parts)
    grouped = to_float32(features).reshape(parts, size, -1, *features.shape[1:])  # [P, G, M, C, R, R]
    centered = grouped - grouped.mean(1, keepdim=True)
    deviation = (centered.square().mean(1, keepdim=True) + EPSILON).sqrt()  # [P, 1, M, C, R, R], biased variance
    return deviation.mean((3, 4, 5)).expand(-1, size, -1).flatten()


@dataclass
class LayerContext:
    """How a layer calculates; `cached_weights` sets it at every pass, for which a module's attributes would be slow."""

    options: ComputeOptions = DEFAULT_OPTIONS
    # What `weights_for` has prepared inside `cached_weights`.
    cache: dict[tuple[float, Method | None], tuple[Tensor, ...]] | None = None


class Equalized(nn.Module):
    """Weight ~ N(0, 1), scaled at run time by gain / sqrt(fan-in); the bias is not scaled.  (paper section 4.1)"""

    def __init__(self, *shape: int, gain: float = HE_GAIN, bias: int | None = None) -> None:
        """Args: shape: of the weight, outputs first; bias: its length where it is not the number of outputs."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0] if bias is None else bias))
        self.scale = gain / sqrt(self.weight[0].numel())
        self.context = LayerContext()

    @property
    def dtype(self) -> torch.dtype:
        """What this layer calculates in."""
        return self.context.options.dtype or self.weight.dtype

    def fold_scale(self, x: Tensor) -> tuple[Tensor, float]:
        """`x` and what is left to multiply the weight by: the scale goes to the smaller of the two.

        Where weights have to be cast, they are copied anyway.
        """
        if x.dtype == self.weight.dtype and x.numel() < self.weight.numel():
            return x * self.scale, 1.0
        return x, self.scale

    def prepare(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        """The tensors that `forward` calculates with, the weight multiplied by `scale`."""
        return (self.weight if scale == 1 else self.weight * scale), self.bias

    def weights_for(self, scale: float, method: Method | None = None) -> tuple[Tensor, ...]:
        """What `prepare` gives in this layer's precision; inside `cached_weights` it is prepared once."""
        key, cache = (scale, method), self.context.cache
        if cache is not None and key in cache:
            return cache[key]
        with torch.set_grad_enabled(cache is not None or torch.is_grad_enabled()):  # a later use may need it
            prepared = tuple(tensor.to(self.dtype) for tensor in self.prepare(scale, method))
        if cache is not None:
            cache[key] = prepared
        return prepared


class EqualizedLinear(Equalized):
    """[N, I] -> [N, O]"""

    def forward(self, x: Tensor) -> Tensor:
        x, scale = self.fold_scale(x.to(self.dtype))
        kernel, bias = self.weights_for(scale)
        return linear(x, kernel, bias, self.context.options.method)


class OutputLinear(EqualizedLinear):
    """The last layer of D, in the precision of its weight whatever that of the others."""

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype


class ToOrFromRGB(Equalized):
    """Every pixel by itself.  [N, I, R, R] -> [N, O, R, R]"""

    def forward(self, x: Tensor) -> Tensor:
        x, scale = self.fold_scale(x.to(self.dtype))
        kernel, bias = self.weights_for(scale)
        return pointwise(x, kernel, bias, self.context.options.method)


class EqualizedConv(Equalized):
    """3x3 convolution.  [N, I, R, R] -> [N, O, R, R], or [N, O, 2R, 2R] or [N, O, R/2, R/2] by its geometry"""

    def __init__(self, *shape: int, geometry: Geometry = Geometry.same) -> None:
        super().__init__(*shape)
        self.geometry = geometry

    def prepare(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        assert method is not None, "a convolution needs one"
        return method.transform(self.weight, self.geometry, scale), self.bias

    def forward(self, x: Tensor) -> Tensor:
        x, scale = x.to(self.dtype), self.scale
        method = self.context.options.method or method_for(x, self.weight, self.geometry)
        if not method.transforms(self.geometry):
            x, scale = self.fold_scale(x)
        kernel, bias = self.weights_for(scale, method)
        return convolution(x, kernel, bias, method, self.geometry)


class ConvWithStddev(EqualizedConv):
    """3x3 convolution of 4x4 features and one more constant map, the stddev: [N, I, 4, 4], [N] -> [N, O, 4, 4]

    A constant map needs no convolution, only the sums of its taps; and I stays a round number, which is fast.
    """

    def prepare(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        """[O, I + 1, 3, 3] to the features' kernel, the bias and the sums of the map's taps [O, 4, 4]."""
        assert method is not None, "a convolution needs one"
        # One operation, and along the last side in memory: the gradients of slices would be padded copies.
        parts = torch.split(self.weight.permute(0, 2, 3, 1), [self.weight.shape[1] - 1, 1], 3)
        features, taps = (part.permute(0, 3, 1, 2) for part in parts)
        sums = F.conv2d(taps.new_ones(1, 1, 4, 4), taps * scale, padding=1)[0]
        return method.transform(features, self.geometry, scale), self.bias, sums

    def forward(self, x: Tensor, stddev: Tensor) -> Tensor:  # type: ignore[override]
        x = x.to(self.dtype)
        method = self.context.options.method or method_for(x, self.weight[:, :-1], self.geometry)
        kernel, bias, sums = self.weights_for(self.scale, method)
        return convolution(x, kernel, bias, method, self.geometry) + stddev.to(x.dtype)[:, None, None, None] * sums
