"""Images resampled by affine transformations, to be differentiated any number of times.

N batch, C channels, R resolution.  Everything is calculated number by number: products of matrices may round
coordinates to the 11 bits of TF32.
"""

from collections.abc import Mapping
from math import log, pi
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

BICUBIC, REFLECTION = 2, 2  # as of torch.ops.aten.grid_sampler_2d


def rotation(angle: Tensor) -> Tensor:
    """The matrices [N, 2, 2] of the rotations by `angle` [N]."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """The products [N, 2, M] of matrices [N, 2, 2] and [N, 2, M]."""
    return (a[:, :, :, None] * b[:, None]).sum(2)


def power_of_two(exponents: Tensor) -> Tensor:
    """2 to the power of `exponents`, without `torch.exp2`, which CUDA compiles while the program runs."""
    return (log(2) * exponents).exp()


def sampling_matrix(parameters: Mapping[str, Tensor], side: int) -> Tensor:
    """The affine maps [N, 2, 3] from the pixels of a result to the pixels of an image of `side`, both from -1 to 1.

    Args: parameters: [N] each, as `Ada` draws them.  They belong to the inverse transformations, which have the same
    distributions.
    """
    a = parameters
    shape = rotation(a["angle_before"]) * power_of_two(torch.stack([a["stretch"], -a["stretch"]], 1))[:, None]
    shape = product(shape, rotation(a["angle_after"])) * power_of_two(a["scale"])[:, None, None]
    move = 2 * torch.stack([a["move_x"], a["move_y"]], 1)[:, :, None]
    shift = 2 * torch.stack([a["shift_x"], a["shift_y"]], 1)[:, :, None].mul(side).round() / side  # whole pixels
    affine = torch.cat([shape, product(shape, move) + shift], 2)
    affine = product(rotation(a["turn"] * (pi / 2)), affine)
    return torch.cat([affine[:, :1] * (1 - 2 * a["flip"])[:, None, None], affine[:, 1:]], 1)


def resample(images: Tensor, matrix: Tensor) -> Tensor:
    """The images [N, C, R, R] sampled where `matrix` [N, 2, 3] says, with mirrored images around them.

    Differs from the paper, which samples an enlarged image linearly and filters it: bicubic sampling needs a quarter of
    the memory, and leaves an image that does not move as it is, too.
    """
    side = images.shape[-1]
    along = (2 * torch.arange(side, device=images.device, dtype=images.dtype) + 1) / side - 1
    of_x, of_y, offset = (column[:, :, None, None] for column in matrix.unbind(2))
    grid = (of_x * along + of_y * along[:, None] + offset).permute(0, 2, 3, 1)  # [N, R, R, 2]
    return ResampleFunction.apply(images, grid, False)  # type: ignore[no-any-return]


class ResampleFunction(torch.autograd.Function):
    """The images sampled at a grid, or the adjoint of that: both are linear, and each is the derivative of the other.

    PyTorch's own second derivative is not in every version that may be installed, and differentiates the grid, too.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, grid: Tensor, adjoint: bool) -> Tensor:
        ctx.save_for_backward(grid)
        ctx.adjoint = adjoint
        if adjoint:  # `images` give the shape only, which is the same before and after
            backward = torch.ops.aten.grid_sampler_2d_backward
            gradients = backward(images, images, grid, BICUBIC, REFLECTION, False, [True, False])
            return gradients[0]  # type: ignore[no-any-return]
        return F.grid_sample(images, grid, "bicubic", "reflection", align_corners=False)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ResampleFunction.apply(gradient, ctx.saved_tensors[0], not ctx.adjoint), None, None
