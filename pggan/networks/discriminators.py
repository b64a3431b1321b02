"""Alternatives to the plain D (`networks.Discriminator`): a D with pretrained features, and a user's own module.

Shapes: N batch size, C channels, R resolution, S side of feature maps, L labels, F number of values in an image and
the projected features of the image.
Source: Sauer et al., "Projected GANs Converge Faster" (NeurIPS 2021), sections 3 and 4.  Kumari et al., too,
combine a plain D with pretrained features: "Ensembling Off-the-shelf Models for GAN Training" (CVPR 2022).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import inf, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.architecture import Architecture, Rescaling
from pggan.core.errors import UserError
from pggan.networks.efficientnet_lite0 import (
    CHANNELS,
    SMALLEST,
    STRIDES,
    Backbone,
    EfficientNetLite0,
    load_efficientnet_lite0,
)
from pggan.networks.layers import Equalized, ProgressiveNetwork, minibatch_stddev
from pggan.networks.networks import Discriminator
from pggan.ops.elementwise import activate, to_float32, upsample

WIDTH = 64  # channels of the projected features at each scale; Projected GAN's code has 64 only at the finest scale
COARSE = 4  # if images have 64x64 pixels (SMALLEST) or fewer, D's heads downsample feature maps to at most 4x4 pixels
# Heads are D's trained layers on pretrained features.  In G's update, HEADS_GRADIENT multiplies the heads' gradient
# with respect to images.  Without this factor, untrained heads' gradient is 15 to 34 times the gradient of the plain D.
HEADS_GRADIENT = 1 / 16
LAST_FEATURES = 64  # number of inputs of the heads' last layer


class FixedConv(nn.Module):
    """A convolution with a random weight that is never trained: N(0, 1) / sqrt(fan-in).

    The weight is a buffer, which checkpoints include.  So a run that resumes with another seed keeps the weight.
    """

    weight: Tensor

    def __init__(self, outputs: int, inputs: int, side: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(outputs, inputs, side, side))
        self.side, self.scale = side, 1 / sqrt(inputs * side**2)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(x, (self.weight * self.scale).to(x.dtype), padding=self.side // 2)


class FeatureProjection(nn.Module):
    """Projects feature maps [N, C, S, S] of several scales, the finest first, to [N, WIDTH, S, S] at the same scales.

    Random 1x1 convolutions mix channels.  Random 3x3 convolutions mix each scale with the next coarser one.
    """

    def __init__(self, channels: Sequence[int]) -> None:
        super().__init__()
        self.mix_channels = nn.ModuleList(FixedConv(WIDTH, count, 1) for count in channels)
        self.mix_scales = nn.ModuleList(FixedConv(WIDTH, WIDTH, 3) for _ in channels)

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        mixed: list[Tensor] = []
        for features, mix_channels, mix_scales in reversed(
            list(zip(maps, self.mix_channels, self.mix_scales, strict=True))
        ):
            x = mix_channels(features)
            if mixed:
                x = (x + upsample(mixed[0])) * sqrt(0.5)
            mixed.insert(0, mix_scales(x))
        return mixed


class ScaleHead(nn.Module):
    """D's trained layers for the projected features of one scale.  [N, WIDTH, S, S] -> [N, WIDTH]"""

    def __init__(self, halvings: int) -> None:
        super().__init__()
        self.halvings = nn.ModuleList(
            Equalized(WIDTH, WIDTH, 3, 3, activation=activate, rescaling=Rescaling.down) for _ in range(halvings)
        )
        self.conv = Equalized(WIDTH, WIDTH, 3, 3, activation=activate)

    def forward(self, x: Tensor) -> Tensor:
        for halve in self.halvings:
            x = halve(x)
        return to_float32(self.conv(x)).mean((2, 3))


class ProjectedDiscriminator(Discriminator):
    """A plain D and, at resolutions from `architecture.features_from` up, trained layers (heads) on projected features.

    The plain D and the heads have separate scores, and so separate losses (docs/decisions.md).
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        self.backbone: Backbone | None = None
        self.features_from = architecture.features_from
        self.projection = FeatureProjection(CHANNELS)
        halvings = [max(SMALLEST // stride // COARSE, 1).bit_length() - 1 for stride in STRIDES]
        self.scales = nn.ModuleList(ScaleHead(count) for count in halvings)
        self.dense = Equalized(LAST_FEATURES, (WIDTH + 1) * len(STRIDES), activation=activate)
        self.score = Equalized(1, LAST_FEATURES, gain=1.0, full_precision=True)
        self.index_weights()

    def set_backbone(self, dtype: torch.dtype | None, network: EfficientNetLite0 | None = None) -> None:
        """Set the `network` that computes features (None: EfficientNet-Lite0) and its `dtype` (None: float32)."""
        network = load_efficientnet_lite0() if network is None else network
        self.backbone = Backbone(network, self.score.weight.device, dtype or torch.float32)

    def features(self, images: Tensor, share: float | Tensor = 1.0) -> Tensor:
        """Flatten `images` [N, C, R, R] in [-1, 1] and their projected features into one float32 tensor [N, F, 1, 1].

        `share` multiplies the gradient that flows from the features to `images`.
        """
        assert self.backbone is not None, "call `set_backbone` first"
        seen = torch.lerp(images.detach(), images, share)  # equal to `images`
        rows = [to_float32(m).flatten(1) for m in (images, *self.projection(self.backbone(seen)))]
        return torch.cat(rows, 1)[:, :, None, None]

    def score_features(
        self, features: Tensor, resolution: int, alpha: float | Tensor = 1.0, sub_batches: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return scores [N, 2] of the plain D and of the heads, and class logits [N, L] of the plain D.

        `features` is what the method `features` returned for images with side `resolution`.
        """
        channels, sides = self.architecture.channels, [max(resolution, SMALLEST) // stride for stride in STRIDES]
        sizes = [channels * resolution**2, *(WIDTH * side**2 for side in sides)]
        pixels, *rows = torch.split(features.flatten(1), sizes, 1)
        images = pixels.view(-1, channels, resolution, resolution)
        scores, logits = super().forward(images, resolution, alpha, sub_batches)
        found = []
        for head, row, side in zip(self.scales, rows, sides, strict=True):
            maps = row.view(-1, WIDTH, side, side)
            found += [head(maps), minibatch_stddev(maps, self.architecture.stddev_group, sub_batches)[:, None]]
        of_heads = self.score(self.dense(torch.cat(found, 1)))
        return torch.cat([scores[:, None], of_heads], 1), logits

    def forward(
        self, images: Tensor, resolution: int, alpha: float | Tensor = 1.0, sub_batches: int = 1
    ) -> tuple[Tensor, Tensor]:
        if resolution < self.features_from:
            return super().forward(images, resolution, alpha, sub_batches)
        share = HEADS_GRADIENT * (alpha if resolution == self.features_from else 1)
        return self.score_features(self.features(images, share), resolution, alpha, sub_batches)


OWN: dict[str | None, nn.Module] = {}  # {class name: user's module}; empty outside `own_discriminator` blocks


class OwnDiscriminator(ProgressiveNetwork):
    """Uses a module from a user's Python code as discriminator.  The module maps images [N, C, R, R] to scores [N]."""

    features_from = inf

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        if architecture.discriminator not in OWN:
            problem = f"This run's discriminator is a module from a Python script (class {architecture.discriminator})."
            raise UserError(problem, "In Python, call pggan.train(…, discriminator=…).")
        parts = [vars(part).values() for part in OWN[architecture.discriminator].modules()]
        # deepcopy can't copy weights that spectral_norm has computed; the next forward pass computes them again.
        computed = {id(one): one.detach() for part in parts for one in part if getattr(one, "grad_fn", None)}
        self.module = deepcopy(OWN[architecture.discriminator], computed).to(torch.empty(0).device)
        self.weights = tuple(weight for weight in self.parameters() if weight.requires_grad)

    def forward(
        self, images: Tensor, resolution: int, alpha: float | Tensor = 1.0, sub_batches: int = 1
    ) -> tuple[Tensor, Tensor]:
        """Return scores [N] and empty class logits [N, 0].  Each sub-batch, such as the reals, is one forward pass."""
        scores = torch.cat([self.module(part) for part in images.chunk(sub_batches)]).float()
        if scores.shape != images.shape[:1]:
            problem = f"The discriminator {self.architecture.discriminator} returned {[*scores.shape]}."
            raise UserError(problem, f"Return one score for each image: {[*images.shape]} -> [{len(images)}].")
        return scores, scores.new_empty(len(scores), 0)


@contextmanager
def own_discriminator(module: object) -> Iterator[None]:
    """Inside the `with` block, training uses a copy of `module` as D; raises UserError if `module` has no weights."""
    if not (isinstance(module, nn.Module) and any(weight.requires_grad for weight in module.parameters())):
        problem = f"discriminator={module!r} is no module with weights to train."
        raise UserError(problem, "Pass a torch.nn.Module object.")
    OWN[type(module).__name__] = module
    try:
        yield
    finally:
        OWN.clear()
