"""The generator and the discriminator.

Shapes: N batch size, C channels or feature maps, R resolution (height = width), Z latent size, L labels.
Source: paper sections 2 to 4 and Table 2; constants as in the official code.
"""

from math import inf, sqrt
from pkgutil import resolve_name

import torch
from torch import Tensor, nn

from pggan.core.architecture import MIN_RESOLUTION, Architecture, Resampling, Rescaling, Stem
from pggan.core.rng import generator_for
from pggan.networks.layers import HE_GAIN, ConvWithStddev, Equalized, ProgressiveNetwork, minibatch_stddev
from pggan.ops.convolution import convolve
from pggan.ops.elementwise import (
    activate,
    activate_and_normalize,
    downsample,
    fade,
    fading,
    pixel_norm,
    to_float32,
    upsample,
)
from pggan.ops.filters import bilateral

OTHERS = "pggan.networks.discriminators"  # imported only if D uses pretrained features, or is a user's module


class GeneratorStem(nn.Module):
    """G's first layers: from latents and labels to 4x4 features.  [N, Z + L] -> [N, C, 4, 4]"""

    def __init__(self, inputs: int, width: int, stem: Stem) -> None:
        super().__init__()
        self.width, self.stem = width, stem
        # In the paper, a 4x4 convolution has 16 times this fan-in; so the gain is HE_GAIN / 4, as in the official code.
        self.dense = Equalized(width * 16, inputs, gain=HE_GAIN / 4)
        if stem is not Stem.unit_bias:
            self.dense.bias = nn.Parameter(torch.empty(width))  # one bias for all 4x4 pixels of a feature map
        self.conv = Equalized(width, width, 3, 3, activation=activate_and_normalize)

    def forward(self, latents: Tensor) -> Tensor:
        x, (kernel, bias, _, rows) = self.dense.operands(latents)
        x = convolve(x, kernel).reshape(-1, self.width, 4, 4)
        if self.stem is Stem.official and rows:
            x = activate_and_normalize(x.contiguous(memory_format=torch.channels_last), bias, rows[0])
        else:
            x = x + bias.to(x.dtype).view(self.width, *(4, 4) if self.stem is Stem.unit_bias else (1, 1))
            x = activate(x) if self.stem is Stem.one_norm else activate_and_normalize(x)
        return self.conv(x)  # type: ignore[no-any-return]


class GeneratorBlock(nn.Module):
    """G's layers that double the resolution to R.  [N, I, R/2, R/2] -> [N, O, R, R]"""

    def __init__(self, inputs: int, outputs: int, resampling: Resampling, *, blur: bool) -> None:
        super().__init__()
        self.fused, act = resampling is Resampling.fused, activate_and_normalize
        rescaling = Rescaling.up if self.fused else Rescaling.same
        self.up_conv = Equalized(outputs, inputs, 3, 3, activation=act, rescaling=rescaling, blur=blur)
        self.conv = Equalized(outputs, outputs, 3, 3, activation=act)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(self.up_conv(x if self.fused else upsample(x)))  # type: ignore[no-any-return]


class DiscriminatorBlock(nn.Module):
    """D's layers that halve the resolution.  [N, I, R, R] -> [N, O, R/2, R/2]

    `residual`: add a skip connection (pooling, 1x1 convolution), and divide the sum by sqrt(2).  (Karras et al. 2020)
    """

    def __init__(self, inputs: int, outputs: int, resampling: Resampling, *, residual: bool) -> None:
        super().__init__()
        self.fused = resampling is Resampling.fused
        rescaling = Rescaling.down if self.fused else Rescaling.same
        self.conv = Equalized(inputs, inputs, 3, 3, activation=activate)
        self.down_conv = Equalized(outputs, inputs, 3, 3, activation=activate, rescaling=rescaling)
        self.skip = Equalized(outputs, inputs, 1, 1, gain=1.0) if residual else None

    def forward(self, x: Tensor) -> Tensor:
        result = self.down_conv(self.conv(x))
        result = result if self.fused else downsample(result)
        return result if self.skip is None else (result + self.skip(downsample(x))) * sqrt(0.5)


class DiscriminatorHead(nn.Module):
    """D's last layers: from 4x4 features to a score and L class logits.  [N, C, 4, 4] -> [N, 1 + L]"""

    def __init__(self, width: int, hidden: int, outputs: int, stddev_group: int) -> None:
        super().__init__()
        self.stddev_group = stddev_group
        self.conv = ConvWithStddev(width, width + 1, 3, 3, activation=activate)
        self.dense = Equalized(hidden, width * 16, activation=activate)
        self.score = Equalized(outputs, hidden, gain=1.0, full_precision=True)

    def forward(self, x: Tensor, sub_batches: int) -> Tensor:
        x = self.conv(x, minibatch_stddev(x, self.stddev_group, sub_batches))
        return self.score(self.dense(x.flatten(1)))  # type: ignore[no-any-return]


class Generator(ProgressiveNetwork):
    """The generator, which maps latents and labels to images."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        a, width, levels = architecture, architecture.width, architecture.resolutions
        self.stem = GeneratorStem(a.latent_size + a.num_classes, width(MIN_RESOLUTION), a.stem)
        self.blocks = nn.ModuleDict(
            {str(r): GeneratorBlock(width(r // 2), width(r), a.resampling, blur=a.blur) for r in levels[1:]}
        )
        self.to_rgb = nn.ModuleDict(
            {str(r): Equalized(a.channels, width(r), 1, 1, gain=1.0, images=True) for r in levels}
        )
        self.index_weights()

    def forward(self, latents: Tensor, labels: Tensor | None, resolution: int, alpha: float | Tensor = 1.0) -> Tensor:
        """Map `latents` [N, Z] and one-hot `labels` [N, L] to images [N, C, R, R] in about [-1, 1]; R = `resolution`.

        `alpha`: weight of the image at R in the fade-in; the upsampled image at R / 2 has the weight 1 - alpha.
        """
        return self.grow(self.features(latents, labels), resolution, alpha)

    def features(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        """Return the features [N, C, 4, 4] from which `grow` computes images."""
        x = latents if labels is None else torch.cat([latents, labels], 1)
        return self.stem(pixel_norm(x))  # type: ignore[no-any-return]

    def grow(self, features: Tensor, resolution: int, alpha: float | Tensor = 1.0) -> Tensor:
        """Compute images [N, C, R, R] from the result of the method `features`; R = `resolution`."""
        x = previous = features
        for level in self.levels[1:]:
            if level <= resolution:
                x, previous = self.blocks[str(level)](x), x
        images = self.images(x, resolution)
        if resolution > MIN_RESOLUTION and fading(alpha):
            images = fade(upsample(self.images(previous, resolution // 2)), images, alpha)
        return images

    def images(self, features: Tensor, resolution: int) -> Tensor:
        """Convert features at R = `resolution` to images [N, C, R, R]."""
        images = to_float32(self.to_rgb[str(resolution)](features))
        return bilateral(images, self.passes) if self.passes else images

    @property
    def passes(self) -> int:
        """The number of passes of the bilateral filter; networks in eval mode use twice as many."""
        # Twice as many passes lowered the KID (x 1000) of generated avatars from 310 to 220.
        return self.architecture.bilateral * (1 if self.training else 2)


class Discriminator(ProgressiveNetwork):
    """The discriminator, which maps images to scores and, if the data set has labels, to class logits."""

    features_from = inf  # D uses pretrained features from this resolution on; inf: never

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        a, width, levels = architecture, architecture.width, architecture.resolutions
        self.from_rgb = nn.ModuleDict(
            {str(r): Equalized(width(r), a.channels, 1, 1, activation=activate, images=True) for r in levels}
        )
        self.blocks = nn.ModuleDict(
            {str(r): DiscriminatorBlock(width(r), width(r // 2), a.resampling, residual=a.residual) for r in levels[1:]}
        )
        self.head = DiscriminatorHead(width(4), width(2), 1 + a.num_classes, a.stddev_group)
        self.index_weights()

    def forward(
        self, images: Tensor, resolution: int, alpha: float | Tensor = 1.0, sub_batches: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return scores [N] and class logits [N, L] of `images` [N, C, R, R], in float32; R = `resolution`.

        `alpha`: weight of the features at R in the fade-in; features of the pooled images have the weight 1 - alpha.
        `sub_batches`: number of equal parts of `images`, such as reals and fakes, with separate minibatch stddevs.
        """
        x = self.from_rgb[str(resolution)](images)
        for level in reversed(self.levels[1:]):
            if level > resolution:
                continue
            x = self.blocks[str(level)](x)
            if level == resolution and fading(alpha):
                old = self.from_rgb[str(level // 2)](downsample(images))
                x = fade(old, x, alpha)
        output = self.head(x, sub_batches)
        return output[:, 0], output[:, 1:]


def new_discriminator(architecture: Architecture) -> ProgressiveNetwork:
    """Build the discriminator.  If it uses pretrained features, call `set_backbone` before the first forward pass.

    Raises UserError if D is a user's module, and no `own_discriminator` block provides the module.
    """
    if architecture.discriminator is None and architecture.features is None:
        return Discriminator(architecture)
    kind = "ProjectedDiscriminator" if architecture.discriminator is None else "OwnDiscriminator"
    other: ProgressiveNetwork = resolve_name(f"{OTHERS}:{kind}")(architecture)
    return other


def initialize(network: nn.Module, seed: int, name: str) -> None:
    """Draw weights from N(0, 1), seeded by `seed`, the weight's name and the network's `name`.  Set biases to 0."""
    with torch.no_grad():
        for key, weight in network.state_dict().items():  # `state_dict` includes the buffer `FixedConv.weight`
            if key.endswith("bias"):
                weight.zero_()
            else:
                weight.copy_(torch.randn(weight.shape, generator=generator_for(seed, f"{name}.{key}", 0)))


def count_parameters(network: nn.Module) -> int:
    """The number of weights and biases of `network`."""
    return sum(parameter.numel() for parameter in network.parameters())
