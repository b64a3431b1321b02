"""DiffAugment: colours, shifts and cut-out squares of every image that D is shown.

N batch, C channels, R resolution.
Source: Zhao et al., Differentiable Augmentation for Data-Efficient GAN Training, 2020; sizes as in the official code.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from pggan.augmentation.base import TRANSFORMS, Augmentation
from pggan.augmentation.color import split_colors
from pggan.core.rng import StepRng
from pggan.core.validation import require

SHIFT = 1 / 8  # largest shift, as part of the side
CUTOUT = 1 / 2  # side of the square that is cut out
NUM_DRAWS = 7  # uniform ones per image: three for colours, then two each


@dataclass(frozen=True, kw_only=True)
class DiffAugment(Augmentation):
    """Transformations of three groups, of every image."""

    colors: bool
    translation: bool
    cutout: bool

    def __post_init__(self) -> None:
        some = self.colors or self.translation or self.cutout
        require(some, "augmentation.colors", self.colors, "true, unless translation or cutout is")

    def draw(self, rng: StepRng, batch: int) -> Tensor:
        """Uniform draws in [0, 1).  [N, TRANSFORMS, NUM_DRAWS]"""
        return rng.uniform("augment_uniform", batch, TRANSFORMS, NUM_DRAWS)

    def apply(self, images: Tensor, draws: Tensor, p: Tensor | None) -> Tensor:
        """Transform `images` [N, C, R, R] by `draws` [N, NUM_DRAWS] in [0, 1); `p` is not used."""
        draws = draws.to(images.dtype)
        if self.colors:
            images = change_colors(images, draws[:, :3])
        if self.translation:
            images = translate(images, draws[:, 3:5])
        return cut_out(images, draws[:, 5:]) if self.cutout else images


def change_colors(images: Tensor, draws: Tensor) -> Tensor:
    """The images with another brightness, saturation and contrast, by `draws` [N, 3] in [0, 1)."""
    colors, others = split_colors(images)
    if colors.shape[1] == 0:
        return images
    brightness, saturation, contrast = draws[:, :, None, None, None].unbind(1)
    colors = colors + (brightness - 0.5)
    gray = colors.mean(1, keepdim=True)
    colors = gray + 2 * saturation * (colors - gray)
    mean = colors.mean((1, 2, 3), keepdim=True)
    return torch.cat([mean + (contrast + 0.5) * (colors - mean), others], 1)


def translate(images: Tensor, draws: Tensor) -> Tensor:
    """The images moved by whole pixels, up to SHIFT of the side, with zeros where nothing is; `draws` [N, 2]."""
    side = images.shape[-1]
    most = int(SHIFT * side + 0.5)
    shift = torch.floor(draws * (2 * most + 1)).long() - most
    places = torch.arange(side, device=images.device) + shift[:, :, None]  # [N, 2, R]
    inside = ((places >= 0) & (places < side)).to(images.dtype)
    rows, columns = places.clamp(0, side - 1).unbind(1)
    images = images.gather(2, rows[:, None, :, None].expand_as(images))
    images = images.gather(3, columns[:, None, None].expand_as(images))
    return images * inside[:, 0, None, :, None] * inside[:, 1, None, None]


def cut_out(images: Tensor, draws: Tensor) -> Tensor:
    """The images with zeros in a random square, CUTOUT of the side wide and cut by the borders; `draws` [N, 2]."""
    side = images.shape[-1]
    size = int(CUTOUT * side + 0.5)
    start = torch.floor(draws * (side + 1 - size % 2)) - size // 2
    places = torch.arange(side, device=images.device) - start[:, :, None]
    hit = ((places >= 0) & (places < size)).to(images.dtype)  # [N, 2, R]
    return images * (1 - hit[:, 0, None, :, None] * hit[:, 1, None, None])
