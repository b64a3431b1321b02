"""The generator, the discriminator and their layers.

Shapes: N batch, C channels or feature maps, R resolution (height = width), Z latent size, L labels.
Source: paper section 2-4 and Table 2; constants as in the official code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pggan.core.architecture import SMALLEST_RESOLUTION, Architecture, Geometry, Resampling
from pggan.core.rng import generator_for
from pggan.networks.activation import activate, activate_and_normalize, pixel_norm, widened
from pggan.networks.convolution import Method, convolution, linear, method_for, pointwise
from pggan.networks.numerics import Compute

HE_GAIN = sqrt(2.0)  # He et al. 2015, for rectified activations
USUAL = Compute()
EPSILON = 1e-8  # under the root of minibatch stddev, as in the official code


# ---- functions -------------------------------------------------------------------------------------------


def upsample(images: Tensor) -> Tensor:
    """Nearest-neighbour doubling.  [N, C, R, R] -> [N, C, 2R, 2R]"""
    return F.interpolate(images, scale_factor=2, mode="nearest")


def downsample(images: Tensor) -> Tensor:
    """Mean of each 2x2 box.  [N, C, R, R] -> [N, C, R/2, R/2]"""
    return F.avg_pool2d(images, 2)


def fade(old: Tensor, new: Tensor, alpha: float | Tensor) -> Tensor:
    """Blend in new layers: `old` at alpha 0, `new` at alpha 1, exactly at both ends.  (paper Figure 2)"""
    return torch.lerp(widened(old), widened(new), alpha).to(new.dtype)


def minibatch_stddev(features: Tensor, group: int, parts: int = 1) -> Tensor:
    """The average standard deviation over the group of each image, in float32.  (paper section 3)

    Groups are strided: of M groups, group m holds the images m, m + M, m + 2M, …
    A batch made of `parts` (P) equal ones has groups of its own in each.
    [N, C, R, R] -> [N]
    """
    size = min(group, len(features) // parts)
    grouped = widened(features).reshape(parts, size, -1, *features.shape[1:])  # [P, G, M, C, R, R]
    centered = grouped - grouped.mean(1, keepdim=True)
    deviation = (centered.square().mean(1, keepdim=True) + EPSILON).sqrt()  # [P, 1, M, C, R, R], biased variance
    return deviation.mean((3, 4, 5)).expand(-1, size, -1).flatten()


# ---- layers ----------------------------------------------------------------------------------------------


@dataclass
class Use:
    """How a layer calculates; `prepared` sets it at every pass, for which a module's attributes would be slow."""

    compute: Compute = field(default_factory=Compute)
    # What `operands` has made inside `prepared`.
    ready: dict[tuple[float, Method | None], tuple[Tensor, ...]] | None = None


class Equalized(nn.Module):
    """Weight ~ N(0, 1), scaled at run time by gain / sqrt(fan-in); the bias is not scaled.  (paper section 4.1)"""

    def __init__(self, *shape: int, gain: float = HE_GAIN, bias: int | None = None) -> None:
        """Args: shape: of the weight, outputs first; bias: its length where it is not the number of outputs."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0] if bias is None else bias))
        self.scale = gain / sqrt(self.weight[0].numel())
        self.use = Use()

    @property
    def dtype(self) -> torch.dtype:
        """What this layer calculates in."""
        return self.use.compute.dtype or self.weight.dtype

    def balanced(self, x: Tensor) -> tuple[Tensor, float]:
        """`x` and what is left to multiply the weight by: the scale goes to the smaller of the two.

        Where weights have to be cast, they are copied anyway.
        """
        if x.dtype == self.weight.dtype and x.numel() < self.weight.numel():
            return x * self.scale, 1.0
        return x, self.scale

    def make(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        """What `forward` calculates with, the weight multiplied by `scale`."""
        return (self.weight if scale == 1 else self.weight * scale), self.bias

    def operands(self, scale: float, method: Method | None = None) -> tuple[Tensor, ...]:
        """What `make` gives in the precision of `prepared`, and made once there."""
        key, ready = (scale, method), self.use.ready
        if ready is not None and key in ready:
            return ready[key]
        with torch.set_grad_enabled(ready is not None or torch.is_grad_enabled()):  # a later use may need it
            made = tuple(operand.to(self.dtype) for operand in self.make(scale, method))
        if ready is not None:
            ready[key] = made
        return made


@contextmanager
def prepared(network: "Generator | Discriminator", compute: Compute) -> Iterator[None]:
    """Inside, `network` calculates as `compute` says, and makes its kernels once, not per use.

    That is to scale them, cast them and bring them into the form of their convolution.  The weights must not change.
    """
    layers = network.layers
    remade = compute.compiled or compute.recompute  # compilers find repetitions themselves
    for layer in layers:
        layer.use.compute, layer.use.ready = compute, None if remade else {}
    network.recompute = compute.recompute
    try:
        yield
    finally:
        for layer in layers:
            layer.use.compute, layer.use.ready = USUAL, None
        network.recompute = False


class EqualizedLinear(Equalized):
    """[N, I] -> [N, O]"""

    def forward(self, x: Tensor) -> Tensor:
        x, scale = self.balanced(x.to(self.dtype))
        kernel, bias = self.operands(scale)
        return linear(x, kernel, bias, self.use.compute.method)


class Score(EqualizedLinear):
    """The last layer of D, in the precision of its weight whatever that of the others."""

    @property
    def dtype(self) -> torch.dtype:
        return self.weight.dtype


class ToOrFromRGB(Equalized):
    """Every pixel by itself.  [N, I, R, R] -> [N, O, R, R]"""

    def forward(self, x: Tensor) -> Tensor:
        x, scale = self.balanced(x.to(self.dtype))
        kernel, bias = self.operands(scale)
        return pointwise(x, kernel, bias, self.use.compute.method)


class EqualizedConv(Equalized):
    """3x3 convolution.  [N, I, R, R] -> [N, O, R, R], or [N, O, 2R, 2R] or [N, O, R/2, R/2] by its geometry"""

    def __init__(self, *shape: int, geometry: Geometry = Geometry.same) -> None:
        super().__init__(*shape)
        self.geometry = geometry

    def make(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        assert method is not None, "a convolution needs one"
        return method.prepared(self.weight, self.geometry, scale), self.bias

    def forward(self, x: Tensor) -> Tensor:
        x, scale = x.to(self.dtype), self.scale
        method = self.use.compute.method or method_for(x, self.weight, self.geometry)
        if not method.remakes(self.geometry):
            x, scale = self.balanced(x)
        kernel, bias = self.operands(scale, method)
        return convolution(x, kernel, bias, method, self.geometry)


class ConvWithEvenMap(EqualizedConv):
    """3x3 convolution of 4x4 features and one more map, even over each image: [N, I, 4, 4], [N] -> [N, O, 4, 4]

    An even map needs no convolution, only the sums of its taps; and I stays a round number, which is fast.
    """

    def make(self, scale: float, method: Method | None) -> tuple[Tensor, ...]:
        """[O, I + 1, 3, 3] to the features' kernel, the bias and the sums of the map's taps [O, 4, 4]."""
        assert method is not None, "a convolution needs one"
        # One operation, and along the last side in memory: the gradients of slices would be padded copies.
        parts = torch.split(self.weight.permute(0, 2, 3, 1), [self.weight.shape[1] - 1, 1], 3)
        features, taps = (part.permute(0, 3, 1, 2) for part in parts)
        sums = F.conv2d(taps.new_ones(1, 1, 4, 4), taps * scale, padding=1)[0]
        return method.prepared(features, self.geometry, scale), self.bias, sums

    def forward(self, x: Tensor, even: Tensor) -> Tensor:  # type: ignore[override]
        x = x.to(self.dtype)
        method = self.use.compute.method or method_for(x, self.weight[:, :-1], self.geometry)
        kernel, bias, sums = self.operands(self.scale, method)
        return convolution(x, kernel, bias, method, self.geometry) + even.to(x.dtype)[:, None, None, None] * sums


class GeneratorStem(nn.Module):
    """Latent to 4x4 features.  [N, Z + L] -> [N, C, 4, 4]"""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        # Gain: a quarter of He's, as if it were a 4x4 convolution over the 4x4-padded latent.
        self.dense = Equalized(width * 16, inputs, gain=HE_GAIN / 4, bias=width)
        self.conv = EqualizedConv(width, width, 3, 3)

    def forward(self, latents: Tensor) -> Tensor:
        latents, scale = self.dense.balanced(latents.to(self.dense.dtype))
        kernel, bias = self.dense.operands(scale)
        x = linear(latents, kernel, None, self.dense.use.compute.method).reshape(-1, self.width, 4, 4)
        x = activate_and_normalize(x + bias[:, None, None])
        return activate_and_normalize(self.conv(x))


class GeneratorBlock(nn.Module):
    """Double the resolution.  [N, I, R/2, R/2] -> [N, O, R, R]"""

    def __init__(self, inputs: int, outputs: int, resampling: Resampling) -> None:
        super().__init__()
        self.fused = resampling is Resampling.fused
        self.up_conv = EqualizedConv(outputs, inputs, 3, 3, geometry=Geometry.up if self.fused else Geometry.same)
        self.conv = EqualizedConv(outputs, outputs, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = activate_and_normalize(self.up_conv(x if self.fused else upsample(x)))
        return activate_and_normalize(self.conv(x))


class DiscriminatorBlock(nn.Module):
    """Halve the resolution, in the order of `Resampling`.  [N, I, R, R] -> [N, O, R/2, R/2]"""

    def __init__(self, inputs: int, outputs: int, resampling: Resampling) -> None:
        super().__init__()
        self.fused = resampling is Resampling.fused
        self.conv = EqualizedConv(inputs, inputs, 3, 3)
        self.down_conv = EqualizedConv(outputs, inputs, 3, 3, geometry=Geometry.down if self.fused else Geometry.same)

    def forward(self, x: Tensor) -> Tensor:
        x = activate(self.down_conv(activate(self.conv(x))))
        return x if self.fused else downsample(x)


class DiscriminatorHead(nn.Module):
    """4x4 features to a score and class logits.  [N, C, 4, 4] -> [N, 1 + L]"""

    def __init__(self, width: int, hidden: int, outputs: int, stddev_group: int) -> None:
        super().__init__()
        self.stddev_group = stddev_group
        self.conv = ConvWithEvenMap(width, width + 1, 3, 3)
        self.dense = EqualizedLinear(hidden, width * 16)
        self.score = Score(outputs, hidden, gain=1.0)

    def forward(self, x: Tensor, parts: int) -> Tensor:
        x = activate(self.conv(x, minibatch_stddev(x, self.stddev_group, parts)))
        x = activate(self.dense(x.flatten(1)))
        output: Tensor = self.score(x)
        return output


# ---- networks --------------------------------------------------------------------------------------------


class Generator(nn.Module):
    """Latents to images at any level; all levels share the blocks below them."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.recompute = False  # inside `prepared`
        self.architecture = a = architecture
        self.stem = GeneratorStem(a.latent_size + a.labels, a.width(SMALLEST_RESOLUTION))
        self.blocks = nn.ModuleDict(
            {str(r): GeneratorBlock(a.width(r // 2), a.width(r), a.resampling) for r in a.resolutions[1:]}
        )
        self.to_rgb = nn.ModuleDict(
            {str(r): ToOrFromRGB(a.channels, a.width(r), 1, 1, gain=1.0) for r in a.resolutions}
        )
        self.layers = equalized_layers(self)
        self.weights = tuple(self.parameters())  # found once: looking for them takes longer than a small layer

    def forward(self, latents: Tensor, labels: Tensor | None, resolution: int, alpha: float | Tensor = 1.0) -> Tensor:
        """Images [N, C, R, R], about [-1, 1], from `latents` [N, Z] and one-hot `labels` [N, L]; R = `resolution`.

        `alpha`: weight of the block that reaches R against the upsampled image of the level below.
        """
        return self.grow(self.features(latents, labels), resolution, alpha)

    def features(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        """The 4x4 features [N, C, 4, 4] that an image grows from."""
        x = latents if labels is None else torch.cat([latents, labels], 1)
        features: Tensor = self.stem(pixel_norm(x))
        return features

    def grow(self, features: Tensor, resolution: int, alpha: float | Tensor = 1.0) -> Tensor:
        """Images [N, C, R, R] from 4x4 features [N, C, 4, 4]; R = `resolution`."""
        x = previous = features
        for level in self.architecture.resolutions[1:]:
            if level <= resolution:
                x, previous = run_block(self.blocks[str(level)], x, self.recompute), x
        images: Tensor = widened(self.to_rgb[str(resolution)](x))
        if resolution > SMALLEST_RESOLUTION and fading(alpha):
            images = fade(upsample(widened(self.to_rgb[str(resolution // 2)](previous))), images, alpha)
        return images


class Discriminator(nn.Module):
    """Images at any level to a score each, and class logits where there are labels."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.recompute = False  # inside `prepared`
        self.architecture = a = architecture
        self.from_rgb = nn.ModuleDict({str(r): ToOrFromRGB(a.width(r), a.channels, 1, 1) for r in a.resolutions})
        self.blocks = nn.ModuleDict(
            {str(r): DiscriminatorBlock(a.width(r), a.width(r // 2), a.resampling) for r in a.resolutions[1:]}
        )
        self.head = DiscriminatorHead(
            a.width(SMALLEST_RESOLUTION), a.width(SMALLEST_RESOLUTION // 2), 1 + a.labels, a.stddev_group
        )
        self.layers = equalized_layers(self)
        self.weights = tuple(self.parameters())  # found once: looking for them takes longer than a small layer

    def forward(
        self, images: Tensor, resolution: int, alpha: float | Tensor = 1.0, parts: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Scores [N] and class logits [N, L], float32, of `images` [N, C, R, R]; R = `resolution`.

        `parts`: equal batches that `images` is made of, whose scores don't depend on each other.
        """
        x = activate(self.from_rgb[str(resolution)](images))
        for level in reversed(self.architecture.resolutions[1:]):
            if level > resolution:
                continue
            x = run_block(self.blocks[str(level)], x, self.recompute)
            if level == resolution and fading(alpha):
                old = activate(self.from_rgb[str(level // 2)](downsample(images)))
                x = fade(old, x, alpha)
        output = self.head(x, parts)
        return output[:, 0], output[:, 1:]


def run_block(block: nn.Module, x: Tensor, recompute: bool) -> Tensor:
    """`block(x)`, keeping for the way back either all that is inside or, with `recompute`, `x` alone."""
    if recompute and torch.is_grad_enabled():
        kept: Tensor = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)  # nothing is drawn in it
        return kept
    result: Tensor = block(x)
    return result


def fading(alpha: float | Tensor) -> bool:
    """Whether there is anything to blend; a tensor may hold any weight, and is not looked into."""
    return isinstance(alpha, Tensor) or alpha < 1


def equalized_layers(network: nn.Module) -> list[Equalized]:
    return [layer for layer in network.modules() if isinstance(layer, Equalized)]


def initialize(network: nn.Module, seed: int, name: str) -> None:
    """Fill weights with N(0, 1) and biases with 0.

    Each weight depends on (seed, name, its own name) alone, so a network for a higher final resolution starts with
    the same lower levels.
    """
    with torch.no_grad():
        for key, parameter in network.named_parameters():
            if key.endswith("bias"):
                parameter.zero_()
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=generator_for(seed, f"{name}.{key}", 0)))


def count_parameters(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())
