"""How different two images look.  N images, C channels, R resolution, F features."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from pggan.core.errors import UserError
from pggan.networks.features.backbone import LITE0, Backbone, load_backbone
from pggan.networks.features.efficientnet_lite0 import weights_file
from pggan.networks.features.user_function import call_user_function, user_errors
from pggan.ops.resample import downsample, upsample

Distance = Callable[[Tensor, Tensor], Tensor]  # of two image batches [N, C, R, R], in [-1, 1], to [N]

LAPLACIAN = "laplacian"
MAX_SIDE = 256  # pixels that the projector of StyleGAN2 shows to its feature network


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


def feature_distance(backbone: Backbone) -> Distance:
    """The distances [N] between images [N, C, R, R] by the feature maps of a pretrained network.

    Features are scaled to length 1 at each place; of each map the mean squared difference, all added up: what is
    depicted counts more than where its pixels are.  Differentiable.  Larger images are scaled down to MAX_SIDE.
    Source: Zhang et al. 2018 (LPIPS), equation 1, with equal weights of all channels.
    """

    def features(images: Tensor) -> list[Tensor]:
        colour = images[:, :3] if images.shape[1] >= 3 else images[:, :1]
        while colour.shape[-1] > MAX_SIDE:
            colour = downsample(colour)
        return [F.normalize(maps) for maps in backbone(colour)]  # over F

    def distance(a: Tensor, b: Tensor) -> Tensor:
        one_image = b.stride(0) == 0  # repeated N times: its features are calculated once
        maps = zip(features(a), features(b[:1] if one_image else b), strict=True)
        return torch.stack([(of_a - of_b).square().sum(1).mean((1, 2)) for of_a, of_b in maps]).sum(0)

    return distance


def load_distance(name: str, device: torch.device) -> Distance:
    """The distance `name` of images on `device`: a known one, or what MODULE:FUNCTION of the user's own returns.

    Raises UserError for others, and where its weights are missing.
    """
    if name == LAPLACIAN:
        return laplacian_distance
    if name == LITE0:
        weights_file(f"Without them: distance={LAPLACIAN}.")
        return feature_distance(load_backbone().to(device))
    module, _, function = name.partition(":")
    if not function:
        raise UserError(f"There is no distance={name}.", f"Use {LAPLACIAN}, {LITE0}, or MODULE:FUNCTION of your own.")
    distance: Distance = call_user_function("distance", module, function)

    def checked(a: Tensor, b: Tensor) -> Tensor:
        with user_errors("distance", f"distance={name}"):
            found = distance(a, b)
            if found.shape != (len(a),):
                raise ValueError(f"it returned {tuple(found.shape)} numbers for {len(a)} pairs of images")
            return found

    return checked
