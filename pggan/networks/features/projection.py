"""Fixed random projections of feature maps, which mix channels and scales.

N batch, C channels, S side of a map.
Source: Sauer et al., "Projected GANs Converge Faster" (NeurIPS 2021), section 3.2.
"""

from collections.abc import Sequence
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.networks.fade import upsample

WIDTH = 64  # maps after a projection, as in the paper's code at the finest scale


class FixedConv(nn.Module):
    """A convolution whose weight ~ N(0, 1) is drawn once and never trained, scaled by 1 / sqrt(fan-in).

    The weight is part of the state: a run that is resumed with another seed keeps its projections.
    """

    weight: Tensor

    def __init__(self, outputs: int, inputs: int, side: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(outputs, inputs, side, side))
        self.side, self.scale = side, 1 / sqrt(inputs * side**2)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, (self.weight * self.scale).to(x.dtype), padding=self.side // 2)


class FeatureProjection(nn.Module):
    """Feature maps [N, C, S, S] of several scales, the finest first, to as many maps [N, WIDTH, S, S].

    A 1x1 convolution mixes the channels of a scale, and a 3x3 convolution the result with the coarser scales.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.mix_channels = nn.ModuleList(FixedConv(WIDTH, count, 1) for count in channels)
        self.mix_scales = nn.ModuleList(FixedConv(WIDTH, WIDTH, 3) for _ in channels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """The projected maps, in the same order; scales differ by factors of 2."""
        mixed: list[Tensor] = []
        for features, mix_channels, mix_scales in reversed(
            list(zip(maps, self.mix_channels, self.mix_scales, strict=True))
        ):
            x = mix_channels(features)
            if mixed:
                x = (x + upsample(mixed[0])) * sqrt(0.5)
            mixed.insert(0, mix_scales(x))
        return mixed
