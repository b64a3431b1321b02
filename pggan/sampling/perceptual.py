"""How different two images look.  N images, C channels, R resolution."""

import torch
from torch import Tensor

from pggan.networks.fade import downsample, upsample


def laplacian_pyramid(images: Tensor) -> list[Tensor]:
    """The levels of images [N, C, R, R], R a power of two: what each has beyond the next one, the last of 1x1 pixels.

    Boxes of 2x2 pixels, as everywhere in this program, are the filter.
    """
    levels = []
    while images.shape[-1] > 1:
        smaller = downsample(images)
        levels.append(images - upsample(smaller))
        images = smaller
    return [*levels, images]


def laplacian_distance(a: Tensor, b: Tensor) -> Tensor:
    """The distances [N] between images `a` and `b` [N, C, R, R]: of each level the mean difference, all added up.

    A shape that has moved, or another brightness, counts at the coarse levels; texture at the fine ones alone.
    Differentiable.  Source: Lap1 of Bojanowski et al. 2018, section 3.
    """
    levels = [level.abs().flatten(1).mean(1) for level in laplacian_pyramid(a - b)]  # the pyramid is linear
    return torch.stack(levels).sum(0)
