"""Adaptive discriminator augmentation: flips, shifts, rotations, scalings and colours, each with probability p.

N batch, C channels, R resolution, K parameters.
Source: Karras et al., Training Generative Adversarial Networks with Limited Data, 2020; distributions of appendix B.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import pi

import torch
from torch import Tensor

from pggan.augmentation.base import TRANSFORMS, Augmentation
from pggan.augmentation.color import transform_colors
from pggan.augmentation.geometry import resample, sampling_matrix
from pggan.core.rng import StepRng
from pggan.core.validation import require

Draw = Callable[[Tensor, Tensor], Tensor]  # a parameter from draws uniform in [0, 1) and normal ones

MAX_P = 0.85  # beyond it, generated images are rotated, too (figure 3 of the paper)


def one_of(count: int) -> Draw:
    """0, 1 … `count` - 1, all as likely."""
    return lambda uniform, normal: torch.floor(count * uniform)


def within(bound: float) -> Draw:
    """Uniform between -`bound` and `bound`."""
    return lambda uniform, normal: bound * (2 * uniform - 1)


def spread(deviation: float) -> Draw:
    """Normal, around 0."""
    return lambda uniform, normal: deviation * normal


# Every parameter leaves the image alone at 0.  Factors are given as binary logarithms, shifts as parts of the side.
BLIT: dict[str, Draw] = {"flip": one_of(2), "turn": one_of(4), "shift_x": within(1 / 8), "shift_y": within(1 / 8)}
GEOMETRY: dict[str, Draw] = {
    "scale": spread(0.2),
    "angle_before": within(pi),
    "stretch": spread(0.2),
    "angle_after": within(pi),
    "move_x": spread(1 / 8),
    "move_y": spread(1 / 8),
}
COLORS: dict[str, Draw] = {
    "brightness": spread(0.2),  # of a range of 2
    "contrast": spread(0.5),
    "invert": one_of(2),
    "hue": within(pi),
    "saturation": spread(1),
}
PARAMETERS = BLIT | GEOMETRY | COLORS
PLACES = {name: place for place, name in enumerate(PARAMETERS)}
PAIRS = (("shift_x", "shift_y"), ("move_x", "move_y"))  # of one transformation
ANGLES = ("angle_before", "angle_after")


@dataclass(frozen=True, kw_only=True)
class Ada(Augmentation):
    """Transformations of three groups; p is fixed, or adapted to how surely D tells reals from fakes."""

    p: float | None
    target: float
    interval: int
    rampup_images: int
    blit: bool
    geometry: bool
    colors: bool

    def __post_init__(self) -> None:
        some = self.blit or self.geometry or self.colors
        require(some, "augmentation.blit", self.blit, "true, unless geometry or colors is")

    @property
    def resamples(self) -> bool:
        """Whether pixels move."""
        return self.blit or self.geometry

    def draw(self, rng: StepRng, batch: int) -> Tensor:
        """For each parameter the least p at which it takes effect, and its value.  [N, TRANSFORMS, 2, K]"""
        shape = (batch, TRANSFORMS, len(PARAMETERS))
        least, uniform = rng.uniform("augment_least_p", *shape), rng.uniform("augment_uniform", *shape)
        normal = rng.normal("augment_normal", *shape)
        for first, second in PAIRS:
            least[..., PLACES[second]] = least[..., PLACES[first]]
        for name in ANGLES:  # each with probability 1 - sqrt(1 - p), so that one of the two with p
            of_angle = least[..., PLACES[name]]
            least[..., PLACES[name]] = of_angle * (2 - of_angle)
        for group, chosen in ((BLIT, self.blit), (GEOMETRY, self.geometry), (COLORS, self.colors)):
            for name in () if chosen else group:
                least[..., PLACES[name]] = 1.0
        values = [draw(uniform[..., k], normal[..., k]) for k, draw in enumerate(PARAMETERS.values())]
        return torch.stack([least, torch.stack(values, -1)], 2)

    def apply(self, images: Tensor, draws: Tensor, p: Tensor | None) -> Tensor:
        """Transform `images` [N, C, R, R] by `draws` [N, 2, K]: for each parameter its least p, and its value."""
        least, values = draws.to(images.dtype).unbind(1)
        p_now = p if self.p is None else self.p
        assert p_now is not None, "part of the state where it is adapted"
        effective = dict(zip(PARAMETERS, (values * (least < p_now)).unbind(1), strict=True))
        if self.resamples:
            images = resample(images, sampling_matrix(effective, images.shape[-1]))
        return transform_colors(images, effective) if self.colors else images
