"""The generator, the discriminator and their layers.

Shapes: N batch, C channels or feature maps, R resolution (height = width), Z latent size, L labels.
Source: paper section 2-4 and Table 2; constants as in the official code.
"""

from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.architecture import SMALLEST_RESOLUTION, Architecture, Resampling
from pggan.draws import generator_for

HE_GAIN = sqrt(2.0)  # He et al. 2015, for rectified activations
LEAKY_SLOPE = 0.2  # paper Table 2
EPSILON = 1e-8  # paper section 4.2, and under the root of minibatch stddev


# ---- functions -------------------------------------------------------------------------------------------


def upsample(images: Tensor) -> Tensor:
    """Nearest-neighbour doubling.  [N, C, R, R] -> [N, C, 2R, 2R]"""
    return F.interpolate(images, scale_factor=2, mode="nearest")


def downsample(images: Tensor) -> Tensor:
    """Mean of each 2x2 box.  [N, C, R, R] -> [N, C, R/2, R/2]"""
    return F.avg_pool2d(images, 2)


def fade(old: Tensor, new: Tensor, alpha: float) -> Tensor:
    """Blend in new layers: `old` at alpha 0, `new` at alpha 1, exactly at both ends.  (paper Figure 2)"""
    return torch.lerp(old, new, alpha)


def pixel_norm(features: Tensor) -> Tensor:
    """Scale each pixel's feature vector (dimension 1) to unit mean square.  (paper section 4.2)"""
    return features * torch.rsqrt(features.square().mean(1, keepdim=True) + EPSILON)


def minibatch_stddev(features: Tensor, group: int, parts: int = 1) -> Tensor:
    """Append one map holding the average standard deviation over a group of images.  (paper section 3)

    Groups are strided: of M groups, group m holds the images m, m + M, m + 2M, …
    A batch made of `parts` (P) equal ones has groups of its own in each.
    [N, C, R, R] -> [N, C + 1, R, R]
    """
    count, _, height, width = features.shape
    size = min(group, count // parts)
    grouped = features.float().reshape(parts, size, -1, *features.shape[1:])  # [P, G, M, C, R, R]
    centered = grouped - grouped.mean(1, keepdim=True)
    deviation = (centered.square().mean(1, keepdim=True) + EPSILON).sqrt()  # [P, 1, M, C, R, R], biased variance
    average = deviation.mean((3, 4, 5)).to(features.dtype)  # [P, 1, M]
    maps = average.expand(-1, size, -1).reshape(-1, 1, 1, 1).expand(-1, 1, height, width)
    return torch.cat([features, maps], 1)


def spread(kernel: Tensor) -> Tensor:
    """Sum of four one-pixel shifts: a 3x3 kernel joined with a 2x2 box.  [O, I, 3, 3] -> [O, I, 4, 4]"""
    padded = F.pad(kernel, (1, 1, 1, 1))
    return padded[..., 1:, 1:] + padded[..., 1:, :-1] + padded[..., :-1, 1:] + padded[..., :-1, :-1]


# ---- layers ----------------------------------------------------------------------------------------------


class Equalized(nn.Module):
    """Weight ~ N(0, 1), scaled at run time by gain / sqrt(fan-in); the bias is not scaled.  (paper section 4.1)"""

    def __init__(self, *shape: int, gain: float = HE_GAIN, bias: int | None = None) -> None:
        """Args: shape: of the weight, outputs first; bias: its length where it is not the number of outputs."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.bias = nn.Parameter(torch.empty(shape[0] if bias is None else bias))
        self.scale = gain / sqrt(self.weight[0].numel())

    @property
    def scaled(self) -> Tensor:
        return self.weight * self.scale


class EqualizedLinear(Equalized):
    """[N, I] -> [N, O]"""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.scaled, self.bias)


class EqualizedConv(Equalized):
    """Convolution at constant resolution.  [N, I, R, R] -> [N, O, R, R]"""

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.scaled, self.bias, padding=self.weight.shape[-1] // 2)


class UpConv(Equalized):
    """Nearest upsampling, then a 3x3 convolution.  [N, I, R, R] -> [N, O, 2R, 2R]"""

    def __init__(self, *shape: int, resampling: Resampling) -> None:
        super().__init__(*shape)
        self.fused = resampling is Resampling.fused

    def forward(self, x: Tensor) -> Tensor:
        if not self.fused:
            return F.conv2d(upsample(x), self.scaled, self.bias, padding=1)
        # A transposed convolution mirrors its kernel, hence the flip; its weight is [I, O, 4, 4].
        kernel = spread(self.scaled.flip(-1, -2)).transpose(0, 1)
        return F.conv_transpose2d(x, kernel, self.bias, stride=2, padding=1)


class DownConv(Equalized):
    """3x3 convolution, activation and box pooling.  [N, I, R, R] -> [N, O, R/2, R/2]

    The order of activation and pooling is that of `Resampling`.
    """

    def __init__(self, *shape: int, resampling: Resampling) -> None:
        super().__init__(*shape)
        self.fused = resampling is Resampling.fused

    def forward(self, x: Tensor) -> Tensor:
        if not self.fused:
            return downsample(activate(F.conv2d(x, self.scaled, self.bias, padding=1)))
        return activate(F.conv2d(x, spread(self.scaled) / 4, self.bias, stride=2, padding=1))


def activate(x: Tensor) -> Tensor:
    return F.leaky_relu(x, LEAKY_SLOPE)


class GeneratorStem(nn.Module):
    """Latent to 4x4 features.  [N, Z + L] -> [N, C, 4, 4]"""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.width = width
        # Gain: a quarter of He's, as if it were a 4x4 convolution over the 4x4-padded latent.
        self.dense = Equalized(width * 16, inputs, gain=HE_GAIN / 4, bias=width)
        self.conv = EqualizedConv(width, width, 3, 3)

    def forward(self, latents: Tensor) -> Tensor:
        x = F.linear(latents, self.dense.scaled).reshape(-1, self.width, 4, 4)
        x = pixel_norm(activate(x + self.dense.bias[:, None, None]))
        return pixel_norm(activate(self.conv(x)))


class GeneratorBlock(nn.Module):
    """Double the resolution.  [N, I, R/2, R/2] -> [N, O, R, R]"""

    def __init__(self, inputs: int, outputs: int, resampling: Resampling) -> None:
        super().__init__()
        self.up_conv = UpConv(outputs, inputs, 3, 3, resampling=resampling)
        self.conv = EqualizedConv(outputs, outputs, 3, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = pixel_norm(activate(self.up_conv(x)))
        return pixel_norm(activate(self.conv(x)))


class DiscriminatorBlock(nn.Module):
    """Halve the resolution.  [N, I, R, R] -> [N, O, R/2, R/2]"""

    def __init__(self, inputs: int, outputs: int, resampling: Resampling) -> None:
        super().__init__()
        self.conv = EqualizedConv(inputs, inputs, 3, 3)
        self.down_conv = DownConv(outputs, inputs, 3, 3, resampling=resampling)

    def forward(self, x: Tensor) -> Tensor:
        halved: Tensor = self.down_conv(activate(self.conv(x)))
        return halved


class DiscriminatorHead(nn.Module):
    """4x4 features to a score and class logits.  [N, C, 4, 4] -> [N, 1 + L]"""

    def __init__(self, width: int, hidden: int, outputs: int, stddev_group: int) -> None:
        super().__init__()
        self.stddev_group = stddev_group
        self.conv = EqualizedConv(width, width + 1, 3, 3)
        self.dense = EqualizedLinear(hidden, width * 16)
        self.score = EqualizedLinear(outputs, hidden, gain=1.0)

    def forward(self, x: Tensor, parts: int) -> Tensor:
        x = activate(self.conv(minibatch_stddev(x, self.stddev_group, parts)))
        output: Tensor = self.score(activate(self.dense(x.flatten(1))))
        return output.float()


# ---- networks --------------------------------------------------------------------------------------------


class Generator(nn.Module):
    """Latents to images at any level; all levels share the blocks below them."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = a = architecture
        self.stem = GeneratorStem(a.latent_size + a.labels, a.width(SMALLEST_RESOLUTION))
        self.blocks = nn.ModuleDict(
            {str(r): GeneratorBlock(a.width(r // 2), a.width(r), a.resampling) for r in a.resolutions[1:]}
        )
        self.to_rgb = nn.ModuleDict(
            {str(r): EqualizedConv(a.channels, a.width(r), 1, 1, gain=1.0) for r in a.resolutions}
        )

    def forward(self, latents: Tensor, labels: Tensor | None, resolution: int, alpha: float = 1.0) -> Tensor:
        """Images [N, C, R, R], about [-1, 1], from `latents` [N, Z] and one-hot `labels` [N, L]; R = `resolution`.

        `alpha`: weight of the block that reaches R against the upsampled image of the level below.
        """
        return self.grow(self.features(latents, labels), resolution, alpha)

    def features(self, latents: Tensor, labels: Tensor | None) -> Tensor:
        """The 4x4 features [N, C, 4, 4] that an image grows from."""
        x = latents if labels is None else torch.cat([latents, labels], 1)
        features: Tensor = self.stem(pixel_norm(x))
        return features

    def grow(self, features: Tensor, resolution: int, alpha: float = 1.0) -> Tensor:
        """Images [N, C, R, R] from 4x4 features [N, C, 4, 4]; R = `resolution`."""
        x = previous = features
        for level in self.architecture.resolutions[1:]:
            if level <= resolution:
                x, previous = self.blocks[str(level)](x), x
        images: Tensor = self.to_rgb[str(resolution)](x)
        if resolution > SMALLEST_RESOLUTION and alpha < 1:
            images = fade(upsample(self.to_rgb[str(resolution // 2)](previous)), images, alpha)
        return images


class Discriminator(nn.Module):
    """Images at any level to a score each, and class logits where there are labels."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        self.architecture = a = architecture
        self.from_rgb = nn.ModuleDict({str(r): EqualizedConv(a.width(r), a.channels, 1, 1) for r in a.resolutions})
        self.blocks = nn.ModuleDict(
            {str(r): DiscriminatorBlock(a.width(r), a.width(r // 2), a.resampling) for r in a.resolutions[1:]}
        )
        self.head = DiscriminatorHead(
            a.width(SMALLEST_RESOLUTION), a.width(SMALLEST_RESOLUTION // 2), 1 + a.labels, a.stddev_group
        )

    def forward(self, images: Tensor, resolution: int, alpha: float = 1.0, parts: int = 1) -> tuple[Tensor, Tensor]:
        """Scores [N] and class logits [N, L], float32, of `images` [N, C, R, R]; R = `resolution`.

        `parts`: equal batches that `images` is made of, whose scores don't depend on each other.
        """
        x = activate(self.from_rgb[str(resolution)](images))
        for level in reversed(self.architecture.resolutions[1:]):
            if level > resolution:
                continue
            x = self.blocks[str(level)](x)
            if level == resolution and alpha < 1:
                old = activate(self.from_rgb[str(level // 2)](downsample(images)))
                x = fade(old, x, alpha)
        output = self.head(x, parts)
        return output[:, 0], output[:, 1:]


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
