"""Penalties on the gradient of D's score at an image, differentiated twice.

N batch, C channels, R resolution.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from pggan.ops.convolution import input_gradients_only
from pggan.ops.elementwise import to_float32


class Critic(Protocol):
    """The discriminator at one resolution and alpha."""

    def __call__(self, images: Tensor, *, sub_batches: int = 1) -> tuple[Tensor, Tensor]:
        """Scores [N] and class logits [N, L] of `images` [N, C, R, R], made of `sub_batches` independent batches."""


class PenaltyAt(Enum):
    """The images at which a gradient penalty takes the gradient."""

    reals = "reals"
    fakes = "fakes"
    interpolated = "interpolated"  # on the line between a real and a fake, uniformly


class PenaltyResolution(Enum):
    """The resolution at which a gradient norm is taken: that of the phase, or as in the official code the final one.

    Official networks see every image upsampled to the final resolution: the norm halves per missing level.
    """

    current = "current"
    final = "final"


class PenaltyContext(NamedTuple):
    """The settings and random numbers of the penalties of one pass."""

    due: "tuple[GradientPenalty, ...]"
    missing_levels: int  # doublings of the resolution still to come
    mix: Tensor | None  # [N, 1, 1, 1], where each interpolated image lies between its real (0) and its fake (1)
    scale: Tensor | None  # of the loss in half precision, which keeps small gradients from vanishing


@dataclass(frozen=True, kw_only=True)
class GradientPenalty:
    """Weight * (|gradient| / target - 1)^2 per image, or weight * |gradient|^2 with target 0.

    With target 0 and weight gamma / 2 this is R1 (at reals) or R2 (at fakes); with target 1 at interpolated images,
    WGAN-GP.
    Source: Gulrajani et al. 2017, equation 3; Mescheder et al. 2018, equation 9; target as in the official code.
    """

    name: str
    at: PenaltyAt
    weight: float
    target: float = 0.0
    reg_interval: int = 1  # updates from one evaluation to the next; the weight is multiplied by it (lazy penalty)
    resolution: PenaltyResolution = PenaltyResolution.current

    def of(self, gradient: Tensor, missing_levels: int) -> Tensor:
        """The penalty [N] of the scores' `gradient` [N, C, R, R], `missing_levels` below the final resolution."""
        gradient = to_float32(gradient).flatten(1)
        if self.resolution is PenaltyResolution.final:
            gradient = gradient / 2**missing_levels
        weight = self.weight * self.reg_interval
        if self.target == 0:
            return weight * gradient.square().sum(1)  # no root: its derivative at 0 is not a number
        norm: Tensor = torch.linalg.vector_norm(gradient, dim=1)
        return weight * (norm - self.target).square() / self.target**2

    def of_scores(self, images: Tensor, scores: Tensor, context: PenaltyContext) -> Tensor:
        """The penalty [N] of `scores` [N] at `images` [N, C, R, R], differentiable a second time."""
        scale = 1.0 if context.scale is None else context.scale
        with input_gradients_only():
            (gradient,) = torch.autograd.grad((scores * scale).sum(), images, create_graph=True)
        return self.of(to_float32(gradient) / scale, context.missing_levels)
