"""The networks straight from their definition: NumPy, float64, one plain step after the other."""

import math

import numpy as np
import torch

from pggan.core.architecture import Resampling
from tests.definitions import variant

# A few maps per level, of different numbers at 4, 8 and 16 so that mixed-up widths show.
TINY = variant(resolution=16, latent_size=7, fmap_base=24, fmap_max=9, stddev_group=2)
HE = math.sqrt(2)  # gain for rectified activations


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def naive_conv(x, weight, bias):
    """One output at a time is too slow; one kernel tap at a time is plain enough.  Zero padding by half a kernel."""
    side = weight.shape[-1]
    pad = side // 2
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = x.shape[2] - side + 1, x.shape[3] - side + 1
    out = np.zeros((x.shape[0], weight.shape[0], height, width))
    for row in range(side):
        for column in range(side):
            seen = x[:, :, row : row + height, column : column + width]
            out += np.einsum("ncij,oc->noij", seen, weight[:, :, row, column], optimize=True)
    return out + bias[:, None, None]


def naive_up(x):
    out = np.zeros((*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]))
    for row in (0, 1):
        for column in (0, 1):
            out[:, :, row::2, column::2] = x
    return out


def naive_down(x):
    return (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4


def naive_blur(x):
    """The mean of the neighbours with weights 1, 2, 1 in both directions, of those that lie in the image."""
    out, weights = np.zeros(x.shape), np.zeros(x.shape)
    side = x.shape[-1]
    for row in (-1, 0, 1):
        for column in (-1, 0, 1):
            weight = (2 - abs(row)) * (2 - abs(column))
            here = np.s_[..., max(0, -row) : side - max(0, row), max(0, -column) : side - max(0, column)]
            there = np.s_[..., max(0, row) : side + min(0, row), max(0, column) : side + min(0, column)]
            out[here] += weight * x[there]
            weights[here] += weight
    return out / weights


def naive_bilateral(x, passes):
    """So many times the mean of each pixel and its neighbours in the image, those of similar colour counting more.

    sigma: ten grey levels of the 255 between -1 and 1.
    """
    sigma, side = 10 * 2 / 255, x.shape[-1]
    for _ in range(passes):
        sums, weights = np.zeros(x.shape), np.zeros((len(x), 1, side, side))
        for row, column in np.ndindex(side, side):
            for i in range(max(0, row - 1), min(side, row + 2)):
                for j in range(max(0, column - 1), min(side, column + 2)):
                    distance = np.sqrt(((x[:, :, i, j] - x[:, :, row, column]) ** 2).sum(1))  # of colours
                    weight = np.exp(-0.5 * (distance / sigma) ** 2)[:, None]
                    sums[:, :, row, column] += weight * x[:, :, i, j]
                    weights[:, :, row, column] += weight
        x = sums / weights
    return x


def naive_activation(x):
    return np.where(x < 0, 0.2 * x, x)


def naive_pixel_norm(x):
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-8)


def naive_stddev(x, group):
    count = len(x)
    size = min(group, count)
    groups = count // size
    values = np.zeros(count)
    for m in range(groups):
        members = [m + k * groups for k in range(size)]
        deviations = np.sqrt(x[members].var(0) + 1e-8)
        values[members] = deviations.mean()
    maps = np.broadcast_to(values[:, None, None, None], (count, 1, *x.shape[2:]))
    return np.concatenate([x, maps], 1)


class Naive:
    """Both networks straight from the definition, with the weights of `network`."""

    def __init__(self, network):
        self.values = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
        self.group = network.architecture.stddev_group
        self.fused, self.blur = network.architecture.resampling is Resampling.fused, network.architecture.blur
        self.residual = network.architecture.residual
        self.bilateral = network.architecture.bilateral * (1 if network.training else 2)

    def layer(self, name, gain=HE):
        weight, bias = self.values[f"{name}.weight"], self.values[f"{name}.bias"]
        return weight * gain / math.sqrt(np.prod(weight.shape[1:])), bias

    def conv(self, name, x, gain=HE):
        return naive_conv(x, *self.layer(name, gain))

    def generate(self, latents, labels, resolution, alpha=1.0):
        x = latents if labels is None else np.concatenate([latents, labels], 1)
        weight, bias = self.layer("stem.dense", math.sqrt(2) / 4)
        x = (naive_pixel_norm(x) @ weight.T).reshape(len(x), -1, 4, 4) + bias[:, None, None]
        x = naive_pixel_norm(naive_activation(x))
        x = old = naive_pixel_norm(naive_activation(self.conv("stem.conv", x)))
        level = 8
        while level <= resolution:
            old = x
            for up, name in ((True, "up_conv"), (False, "conv")):
                x = self.conv(f"blocks.{level}.{name}", naive_up(x) if up else x)
                x = naive_blur(x) if up and self.blur else x
                x = naive_pixel_norm(naive_activation(x))
            level *= 2
        images = self.images(x, resolution)
        if resolution == 4 or alpha == 1:
            return images
        return alpha * images + (1 - alpha) * naive_up(self.images(old, resolution // 2))

    def images(self, features, resolution):
        images = self.conv(f"to_rgb.{resolution}", features, 1)
        return naive_bilateral(images, self.bilateral) if self.bilateral else images

    def scores(self, images, resolution, alpha=1.0):
        x, level = naive_activation(self.conv(f"from_rgb.{resolution}", images)), resolution
        while level > 4:
            given = x
            x = naive_activation(self.conv(f"blocks.{level}.conv", x))
            x = self.conv(f"blocks.{level}.down_conv", x)
            x = naive_activation(naive_down(x)) if self.fused else naive_down(naive_activation(x))
            if self.residual:
                x = (x + self.conv(f"blocks.{level}.skip", naive_down(given), 1)) / math.sqrt(2)
            if level == resolution and alpha < 1:
                old = naive_activation(self.conv(f"from_rgb.{level // 2}", naive_down(images)))
                x = alpha * x + (1 - alpha) * old
            level //= 2
        x = naive_activation(self.conv("head.conv", naive_stddev(x, self.group)))
        weight, bias = self.layer("head.dense")
        x = naive_activation(x.reshape(len(x), -1) @ weight.T + bias)
        weight, bias = self.layer("head.score", 1)
        return x @ weight.T + bias
