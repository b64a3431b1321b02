"""Adaptive discriminator augmentation: flips, shifts, rotations, scalings and colours, each with probability p.

N batch, C channels, R resolution, K parameters.  Coordinates are calculated number by number: products of matrices may
round them to the 11 bits of TF32.
Source: Karras et al., Training Generative Adversarial Networks with Limited Data, 2020; distributions of appendix B.
"""

from collections.abc import Mapping
from math import log, pi, sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.rng import StepRng

TRANSFORMS = 4  # of one step: reals and fakes in D's pass, then in G's
TARGET = 0.6  # mean sign of D's scores of reals that p is adapted to (paper)
INTERVAL = 4  # updates of D from one adaptation of p to the next (paper)
BICUBIC, REFLECTION = 2, 2  # as of torch.ops.aten.grid_sampler_2d
MAX_P = 0.85  # beyond it, generated images are rotated, too (figure 3 of the paper)

# How each parameter is distributed: a whole number below, uniform within, or normal with this deviation.
# Every parameter leaves the image alone at 0.  Factors are given as binary logarithms, shifts as parts of the side.
PARAMETERS = {
    "flip": ("below", 2),
    "turn": ("below", 4),
    "shift_x": ("within", 1 / 8),  # by whole pixels
    "shift_y": ("within", 1 / 8),
    "scale": ("normal", 0.2),
    "angle_before": ("within", pi),
    "stretch": ("normal", 0.2),
    "angle_after": ("within", pi),
    "move_x": ("normal", 1 / 8),
    "move_y": ("normal", 1 / 8),
    "brightness": ("normal", 0.2),  # of a range of 2
    "contrast": ("normal", 0.5),
    "invert": ("below", 2),
    "hue": ("within", pi),
    "saturation": ("normal", 1),
}
PLACES = {name: place for place, name in enumerate(PARAMETERS)}
PAIRS = (("shift_x", "shift_y"), ("move_x", "move_y"))  # of one transformation
ANGLES = ("angle_before", "angle_after")


def draw(rng: StepRng, batch: int) -> Tensor:
    """For each parameter the least p at which it takes effect, and its value.  [N, TRANSFORMS, 2, K]"""
    shape = (batch, TRANSFORMS, len(PARAMETERS))
    least, uniform = rng.uniform("augment_least_p", *shape), rng.uniform("augment_uniform", *shape)
    normal = rng.normal("augment_normal", *shape)
    for first, second in PAIRS:
        least[..., PLACES[second]] = least[..., PLACES[first]]
    for name in ANGLES:  # each with probability 1 - sqrt(1 - p), so that one of the two with p
        of_angle = least[..., PLACES[name]]
        least[..., PLACES[name]] = of_angle * (2 - of_angle)
    values = []
    for place, (kind, size) in enumerate(PARAMETERS.values()):
        u, n = uniform[..., place], normal[..., place]
        values.append(torch.floor(size * u) if kind == "below" else size * (2 * u - 1 if kind == "within" else n))
    return torch.stack([least, torch.stack(values, -1)], 2)


def augment(images: Tensor, draws: Tensor, p: Tensor) -> Tensor:
    """Transform `images` [N, C, R, R] by `draws` [N, 2, K]: for each parameter its least p, and its value.

    The result is differentiable and affine in the images, so that gradient penalties can be taken through it.
    """
    least, values = draws.to(images.dtype).unbind(1)
    effective = dict(zip(PARAMETERS, (values * (least < p)).unbind(1), strict=True))
    return transform_colors(resample(images, sampling_matrix(effective, images.shape[-1])), effective)


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

    Args: parameters: [N] each, as `draw` draws them.  They belong to the inverse transformations, which have the same
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


def transform_colors(images: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """The images [N, C, R, R] with other brightness, contrast, hue and saturation; a fourth channel is opacity.

    Brightness and contrast come first; then grey values are inverted, and colours turn around the grey axis and move
    away from it or towards it.
    Args: parameters: [N] each, as `draw` draws them.
    """
    a = {name: parameter[:, None, None, None] for name, parameter in parameters.items()}
    colors, opacity = images[:, :3], images[:, 3:]
    gray, contrast = colors.mean(1, keepdim=True), power_of_two(a["contrast"])
    result = contrast * (1 - 2 * a["invert"]) * (gray + a["brightness"])
    if colors.shape[1] == 3:
        across = (colors.roll(1, 1) - colors.roll(-1, 1)) / sqrt(3)  # the cross product with the grey axis
        turned = a["hue"].cos() * (colors - gray) + a["hue"].sin() * across
        result = result + contrast * power_of_two(a["saturation"]) * turned
    return torch.cat([result, opacity], 1)


class AdaptiveP:
    """The probability p and what it is adapted by; part of a run's state.  Never waits for the device.

    Source: Karras et al. 2020, section 3.1: every INTERVAL updates, p moves by a fixed amount towards the mean sign
    that is aimed at.
    """

    def __init__(self, device: torch.device, *, target: float, rampup_images: int) -> None:
        """Args: target: the mean sign aimed at; rampup_images: images in which p could rise from 0 to 1."""
        self.target, self.rampup_images = target, rampup_images
        self.p, self.signs, self.images = (torch.zeros((), device=device) for _ in range(3))
        self.updates = torch.zeros((), dtype=torch.int32, device=device)

    def state_dict(self) -> dict[str, Tensor]:
        """The tensors [] of a checkpoint: p, from 0 to 1, and sums since p was last moved."""
        return {"p": self.p, "signs": self.signs, "images": self.images, "updates": self.updates}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Take over what `state_dict` gave; what is missing, as all is in checkpoints of runs without ADA, is 0."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(tensors[name]) if name in tensors else tensor.zero_()

    def follow(self, sign: Tensor, batch: int) -> Tensor:
        """Take in the mean `sign` of D's scores in one update, of a whole batch; returns a copy of p."""
        known = sign.isfinite()  # not where scores are not, whose update is skipped
        self.signs.add_(torch.where(known, sign * batch, 0))
        self.images.add_(known * batch)
        self.updates.add_(1)
        due = self.updates >= INTERVAL
        direction = torch.sign(self.signs - self.target * self.images)
        self.p.add_(direction * self.images * (due / self.rampup_images)).clamp_(0, MAX_P)
        for total in (self.signs, self.images, self.updates):
            total.mul_(~due)
        return self.p.clone()
