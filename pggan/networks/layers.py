"""Layers with an equalised learning rate, and the minibatch standard deviation (stddev).

N batch, I and O input and output feature maps, C channels, R resolution.
Source: paper sections 3 and 4.1; constants as in the official code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.architecture import Architecture, Rescaling
from pggan.ops.convolution import WIDE, Algorithm, Kernel, algorithm_for, convolve, share_kernel, switched
from pggan.ops.elementwise import Activation, adds_bias, to_float32
from pggan.ops.filters import blur

HE_GAIN = sqrt(2.0)  # He et al. 2015, for rectified activations
EPSILON = 1e-8  # under the root of the minibatch stddev, as in the official code


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """How a network computes: choices that change speed and memory, and results by rounding only."""

    dtype: torch.dtype | None = None  # of activations and kernels; None: the type of the weights
    reference: bool = False  # operations are the plain twins of the fast ones


Prepared = tuple[Kernel, Tensor, Tensor | None]  # kernel, bias and, of the layer with the stddev, the sums of taps


class Computing:
    """How the layers of one network compute, and what they have prepared for all passes of a step."""

    def __init__(self) -> None:
        self.options = ComputeOptions()
        self.prepared: dict[tuple[nn.Module, Algorithm, float], Prepared] | None = None


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


class Equalized(nn.Module):
    """A dense layer, or a convolution with 1x1 or 3x3 kernels, and what follows it.

    The weight ~ N(0, 1) is scaled at run time by gain / sqrt(fan-in).  (paper section 4.1)
    [N, I] -> [N, O]; [N, I, R, R] -> [N, O, R, R], or [N, O, 2R, 2R] or [N, O, R/2, R/2] by its rescaling.
    """

    def __init__(
        self,
        *shape: int,
        gain: float = HE_GAIN,
        activation: Activation | None = None,
        rescaling: Rescaling = Rescaling.same,
        blur: bool = False,
        full_precision: bool = False,
    ) -> None:
        """Args: shape: of the weight, outputs first; blur: smooth the result, before the activation."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0]))
        self.scale = gain / sqrt(self.weight[0].numel())
        self.activation, self.rescaling, self.blur = activation, rescaling, blur
        self.full_precision = full_precision
        self.computing = Computing()

    @property
    def dtype(self) -> torch.dtype:
        """The precision this layer computes in."""
        return (not self.full_precision and self.computing.options.dtype) or self.weight.dtype

    def forward(self, x: Tensor, constant: Tensor | None = None) -> Tensor:
        """`constant` [N]: the numbers of one more input map, for `ConvWithStddev`."""
        x, (kernel, bias, sums) = self.operands(x)
        late = self.activation is not None and adds_bias(bias)  # a bias is the same before and after smoothing
        x = convolve(x, kernel, None if late else bias.to(x.dtype))
        x = blur(x) if self.blur else x
        if constant is not None and sums is not None:
            x = x + constant.to(x.dtype)[:, None, None, None] * sums
        return x if self.activation is None else self.activation(x, bias if late else None)

    def operands(self, x: Tensor) -> tuple[Tensor, Prepared]:
        """`x` in this layer's precision, and what multiplies it; the scale goes to the smaller of both, if it can."""
        x, scale, weight = x.to(self.dtype), self.scale, self.weight
        shape = weight.shape[:1] + x.shape[1:2] + weight.shape[2:]
        algorithm = algorithm_for(x, shape, self.rescaling)
        may_scale_x = self.rescaling is Rescaling.same and algorithm.only_scales
        may_scale_x = may_scale_x and (shape, x.dtype) == (weight.shape, weight.dtype)
        # While a network is exported, no choice may depend on the size of its batch.
        if may_scale_x and not torch.compiler.is_exporting() and x.numel() < weight.numel():
            x, scale = x * scale, 1.0
        return x, self.prepared(algorithm, scale)

    def prepared(self, algorithm: Algorithm, scale: float) -> Prepared:
        """The result of `prepare`, made once inside `use_options`."""
        cache, key = self.computing.prepared, (self, algorithm, scale)
        if cache is None:
            return self.prepare(algorithm, scale)
        if key not in cache:
            with torch.enable_grad():  # a later pass may need a gradient
                kernel, *others = self.prepare(algorithm, scale)
                shares = min(self.weight.shape[:2]) >= WIDE
                cache[key] = (share_kernel(kernel) if shares else kernel, *others)  # type: ignore[assignment]
        return cache[key]

    def prepare(self, algorithm: Algorithm, scale: float) -> Prepared:
        """The weight times `scale` in the form of `algorithm`, and the bias."""
        weight = algorithm.prepare(self.weight, self.rescaling, scale)
        return Kernel(weight.to(self.dtype), algorithm, self.rescaling), self.cast_bias(), None

    def cast_bias(self) -> Tensor:
        """The bias in this layer's precision, once for all passes; one that an activation adds has any precision."""
        return self.bias if adds_bias(self.bias) else self.bias.to(self.dtype)


class ConvWithStddev(Equalized):
    """A 3x3 convolution of 4x4 features and of one more map, the constant stddev.  [N, I, 4, 4], [N] -> [N, O, 4, 4]

    A constant map needs no convolution, only the sums of its taps; and I stays a power of two, which is fast.
    """

    def prepare(self, algorithm: Algorithm, scale: float) -> Prepared:
        """The features' kernel, the bias and the sums of the map's taps [O, 4, 4], from a weight [O, I + 1, 3, 3]."""
        # One operation, along the last dimension in memory: the gradients of slices would be padded copies.
        blocks = torch.split(self.weight.permute(0, 2, 3, 1), [self.weight.shape[1] - 1, 1], 3)
        features, taps = (block.permute(0, 3, 1, 2) for block in blocks)
        sums = F.conv2d(taps.new_ones(1, 1, 4, 4), taps * scale, padding=1)[0]
        weight = algorithm.prepare(features, self.rescaling, scale)
        return Kernel(weight.to(self.dtype), algorithm, self.rescaling), self.cast_bias(), sums.to(self.dtype)


class ProgressiveNetwork(nn.Module):
    """A generator or a discriminator."""

    weights: tuple[nn.Parameter, ...]

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture, self.levels, self.computing = architecture, architecture.resolutions, Computing()

    def index_weights(self) -> None:
        """List the weights, once all are there: to search for them takes longer than a small layer."""
        for layer in self.modules():
            if isinstance(layer, Equalized):
                layer.computing = self.computing
        self.weights = tuple(self.parameters())


@contextmanager
def use_options(network: ProgressiveNetwork, options: ComputeOptions, *, frozen: bool = False) -> Iterator[None]:
    """Inside, `network` computes as `options` say; weights are prepared once for all uses, and must not change.

    Args: frozen: the backward pass gives gradients of the network's input only, not of its weights.
    """
    computing, before = network.computing, network.computing.options
    computing.options, computing.prepared = options, None if options.reference else {}
    for weight in network.weights if frozen else ():
        weight.requires_grad_(False)
    try:
        with switched(reference=options.reference):
            yield
    finally:
        computing.options, computing.prepared = before, None
        for weight in network.weights if frozen else ():
            weight.requires_grad_(True)
