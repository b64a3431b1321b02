"""Transformations of colours, which are the first three channels, or the grey one; others stay as they are.

N batch, C channels, R resolution.
"""

from collections.abc import Mapping
from math import sqrt

import torch
from torch import Tensor

from pggan.augmentation.geometry import power_of_two

COLORS_OF = {1: 1, 2: 1, 3: 3, 4: 3}  # colours by channels: grey or red, green and blue, with or without opacity


def split_colors(images: Tensor) -> tuple[Tensor, Tensor]:
    """The channels that are colours, none of them where it is not known what channels are, and the others."""
    count = COLORS_OF.get(images.shape[1], 0)
    return images[:, :count], images[:, count:]


def transform_colors(images: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """The images [N, C, R, R] with other brightness, contrast, hue and saturation.

    Brightness and contrast come first; then grey values are inverted, and colours turn around the grey axis and move
    away from it or towards it.
    Args: parameters: [N] each, as `Ada` draws them.
    """
    a = {name: parameter[:, None, None, None] for name, parameter in parameters.items()}
    colors, others = split_colors(images)
    if colors.shape[1] == 0:
        return images
    gray, contrast = colors.mean(1, keepdim=True), power_of_two(a["contrast"])
    result = contrast * (1 - 2 * a["invert"]) * (gray + a["brightness"])
    if colors.shape[1] == 3:
        across = (colors.roll(1, 1) - colors.roll(-1, 1)) / sqrt(3)  # the cross product with the grey axis
        turned = a["hue"].cos() * (colors - gray) + a["hue"].sin() * across
        result = result + contrast * power_of_two(a["saturation"]) * turned
    return torch.cat([result, others], 1)
