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

HE_GAIN = sqrt(2.0)  # factor for layers before a ReLU (He et al. 2015)
EPSILON = 1e-8  # added to the variance under the root of the minibatch stddev, as in the official code


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Options that affect the speed, memory and rounding of a network, but not the function that it computes."""

    dtype: torch.dtype | None = None  # dtype of activations and kernels; None: the weights' dtype
    reference: bool = False  # use the plain PyTorch twin of every fast operation


Prepared = tuple[Kernel, Tensor, Tensor | None]  # kernel, bias, and for `ConvWithStddev` a convolved map of ones


class Computing:
    """What all layers of a network share: compute options, and the kernels that layers prepare once for all passes."""

    def __init__(self) -> None:
        self.options = ComputeOptions()
        self.prepared: dict[tuple[nn.Module, Algorithm, float], Prepared] | None = None


def minibatch_stddev(features: Tensor, group: int, sub_batches: int = 1) -> Tensor:
    """Standard deviations within each image's group, averaged over C, R, R, in float32.  [N, C, R, R] -> [N]

    Of M groups in a batch, group m holds the images m, m + M, m + 2M, …  If the batch consists of P equal sub-batches,
    such as reals and fakes, no group has images of two sub-batches.  (paper section 3)
    """
    size = min(group, len(features) // sub_batches)
    grouped = to_float32(features).reshape(sub_batches, size, -1, *features.shape[1:])  # [P, G, M, C, R, R]
    centered = grouped - grouped.mean(1, keepdim=True)
    deviation = (centered.square().mean(1, keepdim=True) + EPSILON).sqrt()  # [P, 1, M, C, R, R], biased variance
    return deviation.mean((3, 4, 5)).expand(-1, size, -1).flatten()


class Equalized(nn.Module):
    """A dense layer or a convolution with 1x1 or 3x3 kernels, followed by bias, blur and activation.

    The weight ~ N(0, 1) is scaled at run time by gain / sqrt(fan-in).  (paper section 4.1)
    [N, I] -> [N, O]; [N, I, R, R] -> [N, O, R, R], or with rescaling [N, O, 2R, 2R] or [N, O, R/2, R/2].
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
        """Args: shape: shape of the weight, [O, I, …]; blur: smooth the result before the activation (`blur`)."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0]))
        self.scale = gain / sqrt(self.weight[0].numel())
        self.activation, self.rescaling, self.blur = activation, rescaling, blur
        self.full_precision = full_precision
        self.computing = Computing()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of activations and kernel: the network's option, or with `full_precision` the weight's dtype."""
        return (not self.full_precision and self.computing.options.dtype) or self.weight.dtype

    def forward(self, x: Tensor, constant: Tensor | None = None) -> Tensor:
        """Args: constant: [N], only for `ConvWithStddev`: the value of one more input feature map, at all pixels."""
        x, (kernel, bias, sums) = self.operands(x)
        late = self.activation is not None and adds_bias(bias)  # adding it after `blur` gives the same
        x = convolve(x, kernel, None if late else bias.to(x.dtype))
        x = blur(x) if self.blur else x
        if constant is not None and sums is not None:
            x = x + constant.to(x.dtype)[:, None, None, None] * sums
        return x if self.activation is None else self.activation(x, bias if late else None)

    def operands(self, x: Tensor) -> tuple[Tensor, Prepared]:
        """`x` in the layer's precision, and the prepared kernel.  The scale multiplies a small x, else the kernel."""
        x, scale, weight = x.to(self.dtype), self.scale, self.weight
        shape = weight.shape[:1] + x.shape[1:2] + weight.shape[2:]
        algorithm = algorithm_for(x, shape, self.rescaling)
        may_scale_x = self.rescaling is Rescaling.same and algorithm.only_scales
        may_scale_x = may_scale_x and (shape, x.dtype) == (weight.shape, weight.dtype)
        # An exported network must work for every batch size, so the choice must not depend on the size of x.
        if may_scale_x and not torch.compiler.is_exporting() and x.numel() < weight.numel():
            x, scale = x * scale, 1.0
        return x, self.prepared(algorithm, scale)

    def prepared(self, algorithm: Algorithm, scale: float) -> Prepared:
        """The result of `prepare`, computed only once inside a `use_options` block."""
        cache, key = self.computing.prepared, (self, algorithm, scale)
        if cache is None:
            return self.prepare(algorithm, scale)
        if key not in cache:
            with torch.enable_grad():  # the first pass may need no gradients, but a later pass may
                kernel, *others = self.prepare(algorithm, scale)
                shares = min(self.weight.shape[:2]) >= WIDE
                cache[key] = (share_kernel(kernel) if shares else kernel, *others)  # type: ignore[assignment]
        return cache[key]

    def prepare(self, algorithm: Algorithm, scale: float) -> Prepared:
        """The weight times `scale`, transformed for `algorithm`, and the bias."""
        weight = algorithm.prepare(self.weight, self.rescaling, scale)
        return Kernel(weight.to(self.dtype), algorithm, self.rescaling), self.cast_bias(), None

    def cast_bias(self) -> Tensor:
        """The bias: in the layer's precision, or unchanged if the activation adds it, as this accepts any precision."""
        return self.bias if adds_bias(self.bias) else self.bias.to(self.dtype)


class ConvWithStddev(Equalized):
    """A 3x3 convolution of 4x4 features and of a constant map, the stddev.  [N, I, 4, 4], [N] -> [N, O, 4, 4]

    The convolution of a constant map is its value times the convolution of a map of ones.  So the layer convolves only
    the I features: convolutions are fast with a power of two of them.
    """

    def prepare(self, algorithm: Algorithm, scale: float) -> Prepared:
        """The kernel for the features, the bias, and the convolution [O, 4, 4] of a map of ones."""
        # The split along the last dimension in memory has a cheap gradient; two slices would pad theirs with zeros.
        blocks = torch.split(self.weight.permute(0, 2, 3, 1), [self.weight.shape[1] - 1, 1], 3)
        features, taps = (block.permute(0, 3, 1, 2) for block in blocks)
        sums = F.conv2d(taps.new_ones(1, 1, 4, 4), taps * scale, padding=1)[0]
        weight = algorithm.prepare(features, self.rescaling, scale)
        return Kernel(weight.to(self.dtype), algorithm, self.rescaling), self.cast_bias(), sums.to(self.dtype)


class ProgressiveNetwork(nn.Module):
    """The base class of the generator and the discriminator.  All layers of a network share one `Computing`."""

    weights: tuple[nn.Parameter, ...]

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture, self.levels, self.computing = architecture, architecture.resolutions, Computing()

    def index_weights(self) -> None:
        """List all parameters once, after construction: listing them takes longer than computing a small layer."""
        for layer in self.modules():
            if isinstance(layer, Equalized):
                layer.computing = self.computing
        self.weights = tuple(self.parameters())


@contextmanager
def use_options(network: ProgressiveNetwork, options: ComputeOptions, *, frozen: bool = False) -> Iterator[None]:
    """Inside the `with` block, `network` uses `options`, and prepares each kernel once, so weights must not change.

    Args: frozen: the backward pass computes no gradients of weights, only gradients of the network's input.
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
