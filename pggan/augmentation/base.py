"""The parts of every augmentation: random numbers that are drawn for a whole step, and a function of images.

N batch, C channels, R resolution.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from torch import Tensor

from pggan.core.rng import StepRng

TRANSFORMS = 4  # of one step: reals and fakes in D's pass, then in G's


def unchanged(images: Tensor) -> Tensor:
    """The images as they are."""
    return images


class Transforms(NamedTuple):
    """Functions from the reals and the fakes [N, C, R, R] of one pass to what D is shown of them, of the same shape."""

    reals: Callable[[Tensor], Tensor] = unchanged
    fakes: Callable[[Tensor], Tensor] = unchanged


class Augmentation(ABC):
    """Random transformations of every image that D is shown, real or fake; subclasses are hashable.

    Each is a differentiable function of the images, affine in them, so that gradient penalties can be taken through it.
    """

    @abstractmethod
    def draw(self, rng: StepRng, batch: int) -> Tensor:
        """The random numbers [N, TRANSFORMS, …] of one step, for a whole batch."""

    @abstractmethod
    def apply(self, images: Tensor, draws: Tensor, p: Tensor | None) -> Tensor:
        """The transformed `images` [N, C, R, R], by `draws` [N, …]; `p` of the state, where it is adapted."""

    def transforms(self, draws: Tensor, p: Tensor | None) -> Transforms:
        """The transforms of one pass, from its `draws` [N, 2, …]."""
        return Transforms(*(partial(self.apply, draws=part, p=p) for part in draws.unbind(1)))
