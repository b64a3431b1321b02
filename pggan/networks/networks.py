"""The generator and the discriminator.

N batch, C channels or feature maps, R resolution (height = width), Z latent size, L labels.
Source: paper sections 2 to 4 and Table 2; constants as in the official code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import sqrt

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pggan.core.architecture import MIN_RESOLUTION, Architecture, Resampling, Rescaling, Stem
from pggan.core.rng import generator_for
from pggan.networks.activation import Activation, activate, activate_and_normalize, adds_bias, pixel_norm, to_float32
from pggan.networks.bilateral import bilateral
from pggan.networks.convolution import linear
from pggan.networks.fade import downsample, fade, fading, upsample
from pggan.networks.layers import (
    DEFAULT_OPTIONS,
    HE_GAIN,
    ConvWithStddev,
    Equalized,
    EqualizedConv,
    EqualizedLinear,
    OutputLinear,
    PointwiseConv,
    minibatch_stddev,
)
from pggan.networks.noise import LatentNoise
from pggan.networks.numerics import ComputeOptions


class GeneratorStem(nn.Module):
    """Latent to 4x4 features.  [N, Z + L] -> [N, C, 4, 4]"""

    def __init__(self, inputs: int, width: int, stem: Stem) -> None:
        super().__init__()
        self.width, self.stem = width, stem
        # Gain: a quarter of He's, as if it were a 4x4 convolution over the 4x4-padded latent.
        biases = width * 16 if stem is Stem.unit_bias else width
        self.dense = Equalized(width * 16, inputs, gain=HE_GAIN / 4, bias=biases)
        self.conv = EqualizedConv(width, width, 3, 3)

    def forward(self, latents: Tensor) -> Tensor:
        latents, weight, bias = self.dense.operands(latents)
        x = linear(latents, weight, None, self.dense.context.options.method).reshape(-1, self.width, 4, 4)
        if adds_bias(x) and self.stem is Stem.official:
            x = activate_and_normalize(x.contiguous(memory_format=torch.channels_last), bias)
        else:
            x = x + bias.to(x.dtype).view(self.width, *(4, 4) if self.stem is Stem.unit_bias else (1, 1))
            x = activate(x) if self.stem is Stem.one_norm else activate_and_normalize(x)
        return self.conv(x, activate_and_normalize)  # type: ignore[no-any-return]


class GeneratorBlock(nn.Module):
    """Double the resolution to R.  [N, I, R/2, R/2] -> [N, O, R, R]"""

    def __init__(self, architecture: Architecture, resolution: int) -> None:
        super().__init__()
        a, inputs, outputs = architecture, architecture.width(resolution // 2), architecture.width(resolution)
        self.fused = a.resampling is Resampling.fused
        rescaling = Rescaling.up if self.fused else Rescaling.same
        self.up_conv = EqualizedConv(outputs, inputs, 3, 3, rescaling=rescaling, blur=a.blur)
        self.conv = EqualizedConv(outputs, outputs, 3, 3)
        noises = (LatentNoise(outputs, resolution, a.latent_size, layer) for layer in range(2 if a.noise else 0))
        self.noises = nn.ModuleList(noises)

    def forward(self, x: Tensor, latents: Tensor) -> Tensor:
        """Args: latents: [N, Z], of unit mean square."""
        x = self.up_conv(x if self.fused else upsample(x), self.activation(0, latents))
        return self.conv(x, self.activation(1, latents))  # type: ignore[no-any-return]

    def activation(self, layer: int, latents: Tensor) -> Activation:
        """The operations after the convolution of a layer: noise where there is any, leaky ReLU and pixel norm."""
        if not self.noises:
            return activate_and_normalize
        return lambda x, bias: activate_and_normalize(self.noises[layer](x, latents), bias)


class DiscriminatorBlock(nn.Module):
    """Halve the resolution, in the order of `Resampling`.  [N, I, R, R] -> [N, O, R/2, R/2]

    A residual one adds its input, pooled and projected; the sum is scaled to the mean square of each.  (Karras et al.
    2020, section 4)
    """

    def __init__(self, inputs: int, outputs: int, resampling: Resampling, *, residual: bool = False) -> None:
        super().__init__()
        self.fused = resampling is Resampling.fused
        self.conv = EqualizedConv(inputs, inputs, 3, 3)
        self.down_conv = EqualizedConv(
            outputs, inputs, 3, 3, rescaling=Rescaling.down if self.fused else Rescaling.same
        )
        self.skip = PointwiseConv(outputs, inputs, 1, 1, gain=1.0) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        result = self.down_conv(self.conv(x, activate), activate)
        result = result if self.fused else downsample(result)
        return result if self.skip is None else (result + self.skip(downsample(x))) * sqrt(0.5)


class DiscriminatorHead(nn.Module):
    """4x4 features to a score and class logits.  [N, C, 4, 4] -> [N, 1 + L]"""

    def __init__(self, width: int, hidden: int, outputs: int, stddev_group: int) -> None:
        super().__init__()
        self.stddev_group = stddev_group
        self.conv = ConvWithStddev(width, width + 1, 3, 3)
        self.dense = EqualizedLinear(hidden, width * 16)
        self.score = OutputLinear(outputs, hidden, gain=1.0)

    def forward(self, x: Tensor, sub_batches: int) -> Tensor:
        x = self.conv(x, minibatch_stddev(x, self.stddev_group, sub_batches), activate)
        x = self.dense(x.flatten(1), activate)
        return self.score(x)  # type: ignore[no-any-return]


class ProgressiveNetwork(nn.Module):
    """A generator or a discriminator."""

    layers: list[Equalized]
    weights: tuple[nn.Parameter, ...]

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = architecture
        self.activation_checkpointing = False  # set by `use_options`

    def index_weights(self) -> None:
        """List layers and weights, once all are there: to search for them takes longer than a small layer."""
        self.layers = [layer for layer in self.modules() if isinstance(layer, Equalized)]
        self.weights = tuple(self.parameters())

    def run_block(self, block: Callable[..., Tensor], *inputs: Tensor) -> Tensor:
        """`block(*inputs)`; with activation checkpointing, only the inputs are saved for the backward pass."""
        if self.activation_checkpointing and torch.is_grad_enabled():
            return checkpoint(block, *inputs, use_reentrant=False, preserve_rng_state=False)
        return block(*inputs)


@contextmanager
def use_options(network: ProgressiveNetwork, options: ComputeOptions, *, frozen: bool = False) -> Iterator[None]:
    """Inside, `network` computes as `options` say; weights are prepared once for all uses, and must not change.

    Args: frozen: the backward pass gives gradients of the network's input only, not of its weights.
    """
    uncached = options.compiled or options.activation_checkpointing  # a compiler finds repetitions by itself
    for layer in network.layers:
        layer.context.options, layer.context.cache = options, None if uncached else {}
    network.activation_checkpointing = options.activation_checkpointing
    for weight in network.weights if frozen else ():
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for layer in network.layers:
            layer.context.options, layer.context.cache = DEFAULT_OPTIONS, None
        network.activation_checkpointing = False
        for weight in network.weights if frozen else ():
            weight.requires_grad_(True)


class Generator(ProgressiveNetwork):
    """Latents to images at any resolution, all of which share the blocks of those below."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        a, width, levels = architecture, architecture.width, architecture.resolutions
        self.stem = GeneratorStem(a.latent_size + a.num_classes, width(MIN_RESOLUTION), a.stem)
        self.blocks = nn.ModuleDict({str(r): GeneratorBlock(a, r) for r in levels[1:]})
        self.to_rgb = nn.ModuleDict({str(r): PointwiseConv(a.channels, width(r), 1, 1, gain=1.0) for r in levels})
        self.index_weights()

    def forward(self, latents: Tensor, labels: Tensor | None, resolution: int, alpha: float | Tensor = 1.0) -> Tensor:
        """Images [N, C, R, R] in about [-1, 1], from `latents` [N, Z] and one-hot `labels` [N, L]; R = `resolution`.

        `alpha`: weight of the image at R against the upsampled one of the level below.
        """
        return self.grow(self.features(latents, labels), latents, resolution, alpha)

    def features(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        """The features [N, C, 4, 4] that `grow` starts from."""
        x = latents if labels is None else torch.cat([latents, labels], 1)
        return self.stem(pixel_norm(x))  # type: ignore[no-any-return]

    def grow(self, features: Tensor, latents: Tensor, resolution: int, alpha: float | Tensor = 1.0) -> Tensor:
        """Images [N, C, R, R] from 4x4 features [N, C, 4, 4]; R = `resolution`.

        `latents` [N, Z]: whose noise is added, where the architecture has noise.
        """
        x = previous = features
        latents = pixel_norm(latents) if self.architecture.noise else latents
        for level in self.architecture.resolutions[1:]:
            if level <= resolution:
                x, previous = self.run_block(self.blocks[str(level)], x, latents), x
        images = self.images(x, resolution)
        if resolution > MIN_RESOLUTION and fading(alpha):
            images = fade(upsample(self.images(previous, resolution // 2)), images, alpha)
        return images

    def images(self, features: Tensor, resolution: int) -> Tensor:
        """Images [N, C, R, R] from the features of their level; R = `resolution`."""
        images = to_float32(self.to_rgb[str(resolution)](features))
        passes = self.architecture.bilateral
        return bilateral(images, passes) if passes else images


class Discriminator(ProgressiveNetwork):
    """Images at any resolution to scores, and to class logits where there are labels."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        a, width, levels = architecture, architecture.width, architecture.resolutions
        self.from_rgb = nn.ModuleDict({str(r): PointwiseConv(width(r), a.channels, 1, 1) for r in levels})
        self.blocks = nn.ModuleDict(
            {str(r): DiscriminatorBlock(width(r), width(r // 2), a.resampling, residual=a.residual) for r in levels[1:]}
        )
        self.head = DiscriminatorHead(width(4), width(2), 1 + a.num_classes, a.stddev_group)
        self.index_weights()

    def forward(
        self, images: Tensor, resolution: int, alpha: float | Tensor = 1.0, sub_batches: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Scores [N] and class logits [N, L] of `images` [N, C, R, R], in float32; R = `resolution`.

        `alpha`: weight of the features of the image against those of the pooled image.
        `sub_batches`: equal batches that `images` is made of, whose scores don't depend on each other.
        """
        x = self.from_rgb[str(resolution)](images, activate)
        for level in reversed(self.architecture.resolutions[1:]):
            if level > resolution:
                continue
            x = self.run_block(self.blocks[str(level)], x)
            if level == resolution and fading(alpha):
                old = self.from_rgb[str(level // 2)](downsample(images), activate)
                x = fade(old, x, alpha)
        output = self.head(x, sub_batches)
        return output[:, 0], output[:, 1:]

    def last_layer(self, resolution: int) -> nn.Module:
        """The layer whose inputs [N, H] are all that scores of images of `resolution` depend on."""
        return self.head.score


def initialize(network: nn.Module, seed: int, name: str) -> None:
    """Fill weights with N(0, 1), each depending on `seed`, `name` and its own name alone, others with 0.

    Others are biases, and the strengths of noise.
    """
    with torch.no_grad():
        for key, weight in network.state_dict().items():  # fixed weights, too
            if key.endswith(("bias", "strength")):
                weight.zero_()
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator_for(seed, f"{name}.{key}", 0)))


def count_parameters(network: nn.Module) -> int:
    """The number of weights and biases of `network`."""
    return sum(parameter.numel() for parameter in network.parameters())
