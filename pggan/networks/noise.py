"""Noise that a generator adds to its features: it looks random, and is a fixed function of the latent.

Without noise, a generator has to make the texture of hair and skin, which differs in every pixel, from a few features,
and repeats one pattern in all images instead.  StyleGAN draws noise anew for every image (Karras et al. 2019, section
3.2).  Here one latent has one noise, so that it still has one image: in training on any number of ranks, after
resuming, in every frame of a film, and in exported networks.
N batch, Z latent size, C feature maps, R resolution, K latent numbers, M waves.
"""

from math import sqrt

import torch
from torch import Tensor, nn

from pggan.core.rng import generator_for

WAVES = 4  # that the noise is the sum of
INPUTS = 32  # of the latent's numbers, at most, which decide on the noise
# Of a strength, which so learns at a quarter of the rate of other weights: at 0.0015 in runs of minutes, whose rate is
# 0.006; StyleGAN's are 0.001 to 0.003.
RATE = 1 / 4
SPREAD = 3.0  # standard deviation of a phase among latents, in radians: enough for any phase to be as likely


class LatentNoise(nn.Module):
    """Adds noise, times a strength per feature map that is learned from 0 on.  [N, C, R, R], [N, Z] -> [N, C, R, R]

    At the pixel (y, x) it is the sum over waves of cos(p_y + q_x), all of whose phases are different linear functions
    of the latent.  Among latents, it has mean 0 and variance 1 and is uncorrelated between pixels (but for terms of
    exp(-SPREAD^2)); for neighbouring latents, it is nearly the same.
    """

    rows: Tensor
    columns: Tensor

    def __init__(self, feature_maps: int, resolution: int, latent_size: int, layer: int) -> None:
        """Args: layer: the number of the layer among those of `resolution`; each has noise of its own."""
        super().__init__()
        self.strength = nn.Parameter(torch.empty(feature_maps))
        inputs = min(INPUTS, latent_size)
        shape = (inputs, WAVES * resolution)
        for name in ("rows", "columns"):
            generator = generator_for(0, f"noise.{resolution}.{layer}.{name}", 0)
            phases = torch.randn(shape, generator=generator, device="cpu") * (SPREAD / sqrt(inputs))
            self.register_buffer(name, phases.to(self.strength.device), persistent=False)  # the same in every network

    def forward(self, features: Tensor, latents: Tensor) -> Tensor:
        """Args: latents: of unit mean square."""
        noise = self.noise(latents.detach())  # texture: a gradient of the latent would lead nowhere
        strength = (RATE * self.strength).to(features.dtype).view(-1, 1, 1)
        return torch.addcmul(features, noise.to(features.dtype), strength)

    def noise(self, latents: Tensor) -> Tensor:
        """The noise [N, 1, R, R] of `latents` [N, Z]."""
        latents = latents[:, : len(self.rows)].to(self.rows.dtype)
        shape = -1, WAVES, self.rows.shape[1] // WAVES
        p, q = ((latents @ phases).reshape(shape) for phases in (self.rows, self.columns))  # [N, M, R]
        left, right = torch.cat([p.cos(), p.sin()], 1), torch.cat([q.cos(), -q.sin()], 1)
        return (sqrt(2 / WAVES) * left.mT @ right)[:, None]  # cos(p + q) = cos p cos q - sin p sin q
