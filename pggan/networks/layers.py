"""Layers with an equalised learning rate, and the minibatch standard deviation (stddev).

Shapes: N batch size, I input feature maps, O output feature maps, C channels, R resolution (height = width).
Source: paper sections 3 and 4.1; constants as in the official code.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import sqrt
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.architecture import Architecture, Rescaling
from pggan.ops import rgb
from pggan.ops.convolution import PACKED, RGB, WIDE, Algorithm, Kernel, algorithm_for, convolve, share_kernel, switched
from pggan.ops.elementwise import Activation, serves, to_float32
from pggan.ops.filters import blur
from pggan.ops.fused import EPSILON, WIDEST, Rows, Stddev
from pggan.ops.packed import pack_size
from pggan.ops.preparation import Plan, Request, map_of_ones, prepare_together, transform_of

HE_GAIN = sqrt(2.0)  # before a ReLU, weights have the standard deviation HE_GAIN / sqrt(fan-in) (He et al. 2015)


@dataclass(frozen=True, kw_only=True)
class ComputeOptions:
    """Options that affect the speed, memory and rounding of a network, but not the function that it computes."""

    dtype: torch.dtype | None = None  # dtype of activations and kernels; None means the weights' dtype
    reference: bool = False  # use plain PyTorch operations instead of the fast ones, for comparisons


class Prepared(NamedTuple):
    """Tensors that a layer computes once from its parameters, and uses in many passes."""

    kernel: Kernel
    bias: Tensor
    sums: Tensor | None = None  # [O, 4, 4], only in `ConvWithStddev`: what a minibatch stddev of 1 adds to the output
    rows: Sequence[Rows] = ()  # each function returns the buffer to which Triton adds the gradient of one parameter


Key = tuple["Equalized", Algorithm, float]


class Computing:
    """What all layers of a network share: compute options, and a cache of convolution kernels made from the weights."""

    def __init__(self) -> None:
        self.options = ComputeOptions()
        self.prepared: dict[Key, Prepared] | None = None
        self.served = False  # whether layers use Triton; if true, Triton also makes the convolution kernels
        self.asked: dict[ComputeOptions, dict[Key, None]] = {}  # kernels to make when `use_options` is next entered
        self.plans: dict[Any, Plan] = {}

    def prepare_together(self, keys: Iterable[Key]) -> dict[Key, Prepared]:
        """Make many layers' convolution kernels in one Triton launch; skip layers whose dtype isn't `options.dtype`."""
        served = [key for key in keys if key[0].dtype == (self.options.dtype or torch.float32)]
        requests = [layer.request(algorithm, scale) for layer, algorithm, scale in served]
        if not requests:
            return {}
        found = prepare_together(requests, served[0][0].dtype, self.plans)
        return {key: key[0].assemble(key[1], *one) for key, one in zip(served, found, strict=True)}


def minibatch_stddev(features: Tensor, group: int, sub_batches: int = 1) -> Tensor:
    """The minibatch stddev of each image, in float32: [N, C, R, R] -> [N].  (paper section 3)

    The batch has `sub_batches` equal parts, such as reals and fakes.  A part has M groups of `group` images: group m
    holds the images m, m + M, m + 2M, … of the part.
    """
    size = min(group, len(features) // sub_batches)
    if serves(features):
        apply: Callable[..., Tensor] = Stddev.apply
        return apply(features, (size, len(features) // (sub_batches * size)))
    grouped = to_float32(features).reshape(sub_batches, size, -1, *features.shape[1:])
    centered = grouped - grouped.mean(1, keepdim=True)
    deviation = (centered.square().mean(1, keepdim=True) + EPSILON).sqrt()
    return deviation.mean((3, 4, 5)).expand(-1, size, -1).flatten()


class Equalized(nn.Module):
    """A dense layer, or a 1x1 or 3x3 convolution, followed by an optional blur, a bias and an optional activation.

    The weight is drawn from N(0, 1).  Each forward pass multiplies it by gain / sqrt(fan-in).  (paper section 4.1)
    [N, I] -> [N, O]; [N, I, R, R] -> [N, O, R, R] or, with rescaling, [N, O, 2R, 2R] or [N, O, R/2, R/2].
    """

    def __init__(
        self,
        *shape: int,
        gain: float = HE_GAIN,
        activation: Activation | None = None,
        rescaling: Rescaling = Rescaling.same,
        blur: bool = False,
        full_precision: bool = False,
        images: bool = False,
    ) -> None:
        """`shape`: [O, I] of a dense layer, else [O, I, side, side].  `images`: True for from-RGB and to-RGB layers."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0]))
        self.scale = gain / sqrt(self.weight[0].numel())
        self.activation, self.rescaling, self.blur = activation, rescaling, blur
        self.full_precision = full_precision
        self.images = images and min(shape[:2]) <= rgb.MOST_CHANNELS and max(shape[:2]) <= WIDEST
        self.computing = Computing()

    @property
    def dtype(self) -> torch.dtype:
        return (not self.full_precision and self.computing.options.dtype) or self.weight.dtype

    def forward(self, x: Tensor, constant: Tensor | None = None) -> Tensor:
        """The layer's output for `x`.  `constant` [N], only for `ConvWithStddev`: each image's minibatch stddev."""
        if self.images and self.computing.served:
            kernel, bias, _, rows = self.prepared(RGB, self.scale)
            how = rgb.Layer(self.activation is None, self.scale, self.dtype, rows)
            apply: Callable[..., Tensor] = rgb.ToRgb.apply if how.to_rgb else rgb.FromRgb.apply
            return apply(x, kernel.tensor, bias, how)
        x, (kernel, bias, sums, rows) = self.operands(x)
        late = self.activation is not None and len(rows) > 0  # adding the bias after the blur gives the same result
        x = convolve(x, kernel, None if late else bias.to(x.dtype))
        x = blur(x) if self.blur else x
        if constant is not None and sums is not None:
            x = x + constant.to(x.dtype)[:, None, None, None] * sums
        return x if self.activation is None else self.activation(x, *((bias, rows[0]) if late else (None, None)))

    def operands(self, x: Tensor) -> tuple[Tensor, Prepared]:
        """Return (`x` in `self.dtype`, prepared kernel and bias).  The factor `scale` multiplies `x` or the kernel."""
        x, scale, weight = x.to(self.dtype), self.scale, self.weight
        shape = weight.shape[:1] + x.shape[1:2] + weight.shape[2:]
        algorithm = algorithm_for(x, shape, self.rescaling)
        may_scale_x = self.rescaling is Rescaling.same and algorithm.only_scales
        may_scale_x = may_scale_x and (shape, x.dtype) == (weight.shape, weight.dtype) and not self.computing.served
        if may_scale_x and x.numel() < weight.numel():
            x, scale = x * scale, 1.0
        return x, self.prepared(algorithm, scale)

    def prepared(self, algorithm: Algorithm, scale: float) -> Prepared:
        """The result of the method `prepare`.  In a `use_options` block, results are cached by their arguments."""
        computing, key = self.computing, (self, algorithm, scale)
        cache = computing.prepared
        if cache is None:
            return self.prepare(algorithm, scale)
        if computing.served:
            computing.asked[computing.options][key] = None
        if key not in cache:
            with torch.enable_grad():  # even if this pass needs no gradients, a later pass with the cached kernel may
                cache |= computing.prepare_together([key]) if computing.served else {}
                if key not in cache:
                    prepared = self.prepare(algorithm, scale)
                    shares = min(self.weight.shape[:2]) >= WIDE
                    cache[key] = prepared._replace(kernel=share_kernel(prepared.kernel)) if shares else prepared
        return cache[key]

    def prepare(self, algorithm: Algorithm, scale: float) -> Prepared:
        weight = algorithm.prepare(self.weight, self.rescaling, scale)
        return Prepared(Kernel(weight.to(self.dtype), algorithm, self.rescaling), self.bias.to(self.dtype))

    def request(self, algorithm: Algorithm, scale: float, inputs: int | None = None) -> Request:
        """The `Request` by which Triton makes the kernel from weights of the first `inputs` input maps (None: all)."""
        if algorithm is RGB:
            return Request(self.weight, (), (self.weight, self.bias))
        k = pack_size(*self.weight.shape[:2]) if algorithm is PACKED else None
        kernel = transform_of(self.weight, inputs or self.weight.shape[1], scale, self.rescaling, k)
        return Request(self.weight, (kernel,), (self.bias,))

    def assemble(
        self, algorithm: Algorithm, kernels: list[tuple[Tensor, list[Tensor]]], passed: list[tuple[Tensor, Rows]]
    ) -> Prepared:
        kernel, aside = kernels[0] if kernels else (passed[0][0], None)
        kernel = kernel.flatten(1) if self.weight.ndim == 2 else kernel
        sums = kernels[1][0].flatten(0, 1) if len(kernels) > 1 else None
        bias, rows = passed[-1][0], [of for _, of in passed] if self.bias.numel() <= WIDEST else []
        return Prepared(Kernel(kernel, algorithm, self.rescaling, aside=aside), bias, sums, rows)


class ConvWithStddev(Equalized):
    """A 3x3 convolution of I feature maps and one map filled with the stddev.  [N, I, 4, 4], [N] -> [N, O, 4, 4]

    A convolution of I + 1 maps would be slow, because I + 1 is no power of two.  So the layer convolves only the I
    feature maps, and adds the minibatch stddev times the convolution of a map of ones.
    """

    def prepare(self, algorithm: Algorithm, scale: float) -> Prepared:
        # `split` has a faster backward pass than slices, whose backward passes pad gradients with zeros.
        blocks = torch.split(self.weight.permute(0, 2, 3, 1), [self.weight.shape[1] - 1, 1], 3)
        features, taps = (block.permute(0, 3, 1, 2) for block in blocks)
        sums = F.conv2d(taps.new_ones(1, 1, 4, 4), taps * scale, padding=1)[0]
        weight = algorithm.prepare(features, self.rescaling, scale)
        kernel = Kernel(weight.to(self.dtype), algorithm, self.rescaling)
        return Prepared(kernel, self.bias.to(self.dtype), sums.to(self.dtype))

    def request(self, algorithm: Algorithm, scale: float, inputs: int | None = None) -> Request:
        request = super().request(algorithm, scale, self.weight.shape[1] - 1)
        return request._replace(transforms=(*request.transforms, map_of_ones(self.weight, scale)))


class ProgressiveNetwork(nn.Module):
    """The base class of the generator and the discriminator."""

    weights: tuple[nn.Parameter, ...]

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture, self.levels, self.computing = architecture, architecture.resolutions, Computing()

    def index_weights(self) -> None:
        """Let all layers share options and kernels.  Keep a tuple of all parameters, because `parameters()` is slow."""
        for layer in self.modules():
            if isinstance(layer, Equalized):
                layer.computing = self.computing
        self.weights = tuple(self.parameters())


@contextmanager
def use_options(network: ProgressiveNetwork, options: ComputeOptions, *, frozen: bool = False) -> Iterator[None]:
    """In the `with` block, `network` uses `options`; no weight may change.  `frozen`: weights get no gradient."""
    computing, before = network.computing, network.computing.options
    computing.options = options
    expected, computing.asked[options] = computing.asked.get(options, ()), {}
    for weight in network.weights if frozen else ():
        weight.requires_grad_(False)
    try:
        with switched(reference=options.reference):
            computing.prepared = None if options.reference else {}
            computing.served = network.weights[0].dtype is torch.float32 and serves(network.weights[0])
            if computing.served:
                with torch.enable_grad():
                    computing.prepared = computing.prepare_together(expected)
            yield
    finally:
        computing.options, computing.prepared, computing.served = before, None, False
        for weight in network.weights if frozen else ():
            weight.requires_grad_(True)


def backpropagate(loss: Tensor, *, through_d: bool) -> None:
    """Backpropagate `loss` to weights.  `through_d`: also compute D's gradient with respect to images, for G's loss."""
    with switched(image_gradients=through_d):
        loss.backward()  # type: ignore[no-untyped-call]
