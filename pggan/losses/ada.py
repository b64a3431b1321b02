"""Adaptive discriminator augmentation (ADA): random changes of geometry and colours, each with probability p.

Shapes: N batch size, C channels, R resolution, K kinds of changes (PARAMETERS).
Source (the "ADA paper"): Karras et al., Training Generative Adversarial Networks with Limited Data, 2020, appendix B.
"""

from collections.abc import Mapping
from math import log, pi, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.rng import StepRng
from pggan.ops.products import LinearMap

TRANSFORMS = 4  # a training step augments up to four batches: reals and fakes in D's loss, reals and fakes in G's loss
TARGET = 0.6  # ADA adapts its probability p until the signs (-1 or 1) of D's scores of reals have this mean (ADA paper)
INTERVAL = 4  # ADA changes its probability p once in this many updates of D (ADA paper)
BICUBIC, REFLECTION = 2, 2  # modes of torch.ops.aten.grid_sampler_2d
MAX_P = 0.85  # with a larger probability p, G would learn to generate rotated images (ADA paper, figure 3)

# Distributions: ("below", n) means integers from 0 to n - 1, ("within", x) uniform in [-x, x], ("normal", x) N(0, x^2).
# A parameter that is 0 leaves images unchanged.  Scale, stretch, contrast and saturation are log2 of a factor.
# Shifts and moves are fractions of the image's side.  Shifts are rounded to whole pixels, moves are not.
PARAMETERS = {
    "flip": ("below", 2),
    "turn": ("below", 4),
    "shift_x": ("within", 1 / 8),
    "shift_y": ("within", 1 / 8),
    "scale": ("normal", 0.2),
    "angle_before": ("within", pi),
    "stretch": ("normal", 0.2),
    "angle_after": ("within", pi),
    "move_x": ("normal", 1 / 8),
    "move_y": ("normal", 1 / 8),
    "brightness": ("normal", 0.2),  # pixels are in [-1, 1]
    "contrast": ("normal", 0.5),
    "invert": ("below", 2),
    "hue": ("within", pi),
    "saturation": ("normal", 1),
}
PLACES = {name: place for place, name in enumerate(PARAMETERS)}
PAIRS = (("shift_x", "shift_y"), ("move_x", "move_y"))  # x and y change together
ANGLES = ("angle_before", "angle_after")


def draw(rng: StepRng, batch: int) -> Tensor:
    """Draw a threshold and a value per image, per augmentation in a step, per kind of change: [N, TRANSFORMS, 2, K]."""
    shape = (batch, TRANSFORMS, len(PARAMETERS))
    least, uniform = rng.uniform("augment_least_p", *shape), rng.uniform("augment_uniform", *shape)
    normal = rng.normal("augment_normal", *shape)
    for first, second in PAIRS:
        least[..., PLACES[second]] = least[..., PLACES[first]]
    for name in ANGLES:  # an image is rotated with probability p if each of 2 rotations has probability 1 - sqrt(1 - p)
        of_angle = least[..., PLACES[name]]
        least[..., PLACES[name]] = of_angle * (2 - of_angle)
    values = []
    for place, (kind, size) in enumerate(PARAMETERS.values()):
        u, n = uniform[..., place], normal[..., place]
        values.append(torch.floor(size * u) if kind == "below" else size * (2 * u - 1 if kind == "within" else n))
    return torch.stack([least, torch.stack(values, -1)], 2)


def augment(images: Tensor, draws: Tensor, p: Tensor) -> Tensor:
    """Augment images [N, C, R, R] by twice differentiable operations, as gradient penalties require.

    `draws` [N, 2, K] holds a threshold and a value per image and kind of change.  A change applies if p > threshold.
    """
    least, values = draws.to(images.dtype).unbind(1)
    effective = dict(zip(PARAMETERS, (values * (least < p)).unbind(1), strict=True))
    return transform_colors(resample(images, sampling_matrix(effective, images.shape[-1])), effective)


def rotation(angle: Tensor) -> Tensor:
    """The matrices [N, 2, 2] of the rotations by `angle` [N] in radians."""
    cos, sin = angle.cos(), angle.sin()
    return torch.stack([torch.stack([cos, -sin], 1), torch.stack([sin, cos], 1)], 1)


def product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply matrices `a` [N, 2, 2] and `b` [N, 2, M] without torch.matmul, which could round coordinates to TF32."""
    return (a[:, :, :, None] * b[:, None]).sum(2)


def power_of_two(exponents: Tensor) -> Tensor:
    """2**exponents, computed by `exp`, because PyTorch would compile `torch.exp2` for CUDA at run time."""
    return (log(2) * exponents).exp()


def sampling_matrix(parameters: Mapping[str, Tensor], side: int) -> Tensor:
    """The affine maps [N, 2, 3] from an augmented image's points to the original's points; images span [-1, 1]^2."""
    a = parameters
    shape = rotation(a["angle_before"]) * power_of_two(torch.stack([a["stretch"], -a["stretch"]], 1))[:, None]
    shape = product(shape, rotation(a["angle_after"])) * power_of_two(a["scale"])[:, None, None]
    move = 2 * torch.stack([a["move_x"], a["move_y"]], 1)[:, :, None]
    shift = 2 * torch.stack([a["shift_x"], a["shift_y"]], 1)[:, :, None].mul(side).round() / side
    affine = torch.cat([shape, product(shape, move) + shift], 2)
    affine = product(rotation(a["turn"] * (pi / 2)), affine)
    return torch.cat([affine[:, :1] * (1 - 2 * a["flip"])[:, None, None], affine[:, 1:]], 1)


def resample(images: Tensor, matrix: Tensor) -> Tensor:
    """Transform images [N, C, R, R] by the affine maps of `sampling_matrix`, with mirrored borders."""
    side = images.shape[-1]
    along = (2 * torch.arange(side, device=images.device, dtype=images.dtype) + 1) / side - 1
    of_x, of_y, offset = (column[:, :, None, None] for column in matrix.unbind(2))
    grid = (of_x * along + of_y * along[:, None] + offset).permute(0, 2, 3, 1)  # [N, R, R, 2]
    # PyTorch's own second derivative of grid_sample is slower, because it includes the gradient w.r.t. the grid.
    return LinearMap.apply(sample, sample_back, grid, images)  # type: ignore[no-any-return]


def sample(grid: Tensor, images: Tensor) -> Tensor:
    """Sample images [N, C, R, R] at the points of a grid [N, R, R, 2]."""
    # Bicubic sampling needs a quarter of the memory of the ADA paper's method: enlarge, sample and filter the images.
    return F.grid_sample(images, grid, "bicubic", "reflection", align_corners=False)


def sample_back(grid: Tensor, gradient: Tensor) -> Tensor:
    """The adjoint of `sample`: return the gradient of `images`, from the `gradient` of the sampled images."""
    backward, asked = torch.ops.aten.grid_sampler_2d_backward, [True, False]  # `backward` reads only argument 2's shape
    found = backward(gradient, gradient, grid, BICUBIC, REFLECTION, False, asked)
    return found[0]  # type: ignore[no-any-return]


def transform_colors(images: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
    """Change brightness, contrast, luma flip, hue and saturation, in this order.  Copy a fourth channel (opacity)."""
    a = {name: parameter[:, None, None, None] for name, parameter in parameters.items()}
    colors, opacity = images[:, :3], images[:, 3:]
    gray, contrast = colors.mean(1, keepdim=True), power_of_two(a["contrast"])
    result = contrast * (1 - 2 * a["invert"]) * (gray + a["brightness"])
    if colors.shape[1] == 3:
        across = (colors.roll(1, 1) - colors.roll(-1, 1)) / sqrt(3)  # cross product of each colour with the grey axis
        turned = a["hue"].cos() * (colors - gray) + a["hue"].sin() * across
        result = result + contrast * power_of_two(a["saturation"]) * turned
    return torch.cat([result, opacity], 1)


class AdaptiveP:
    """ADA's probability p, which rises while the mean sign of D's scores is above a target, and else falls.

    No method waits for the GPU.  Source: Karras et al. 2020, section 3.1.
    """

    def __init__(self, device: torch.device, *, target: float, rampup_images: int) -> None:
        """`target` is the wanted mean sign of D's scores; p rises or falls by 1 / `rampup_images` per image."""
        self.target, self.rampup_images = target, rampup_images
        self.p, self.signs, self.images = (torch.zeros((), device=device) for _ in range(3))
        self.updates = torch.zeros((), dtype=torch.int32, device=device)

    def state_dict(self) -> dict[str, Tensor]:
        return {"p": self.p, "signs": self.signs, "images": self.images, "updates": self.updates}

    def load_state_dict(self, tensors: dict[str, Tensor]) -> None:
        """Load `state_dict`; missing tensors become 0, because runs without ADA do not save them."""
        for name, tensor in self.state_dict().items():
            tensor.copy_(tensors[name]) if name in tensors else tensor.zero_()

    def follow(self, sign: Tensor, batch: int) -> Tensor:
        """Record the mean `sign` of D's scores of a batch, change p every INTERVAL calls, and return p."""
        known = sign.isfinite()  # NaN scores are left out, because the trainer skips the update of D
        self.signs.add_(torch.where(known, sign * batch, 0))
        self.images.add_(known * batch)
        self.updates.add_(1)
        due = self.updates >= INTERVAL
        direction = torch.sign(self.signs - self.target * self.images)
        self.p.add_(direction * self.images * (due / self.rampup_images)).clamp_(0, MAX_P)
        for total in (self.signs, self.images, self.updates):
            total.mul_(~due)
        return self.p.clone()
