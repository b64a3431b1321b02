"""EfficientNet-Lite0 as four feature maps of an image, at strides of 4, 8, 16 and 32 pixels.

Its weights are constants: they are neither trained nor part of a checkpoint, which holds their checksum.
N batch, C channels, R resolution, S side of the images that the network is shown.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.atomic_io import file_sha256
from pggan.networks import efficientnet_lite0
from pggan.networks.efficientnet_lite0 import EfficientNetLite0

LITE0 = "efficientnet-lite0"
STRIDES = (4, 8, 16, 32)
SIDE = 64  # to which smaller images are enlarged: the smallest whose map at stride 32 has neighbours
ENDS = (6, 8, 14, 19)  # layers up to the last map of each stride; others are for classes
CHANNELS = (24, 40, 112, 320)
SCALES = (16.0, 8.0, 4.0, 2.0)  # the powers of two nearest to the standard deviations of the maps, of noise
MEAN, STD = 127.0, 128.0  # of the pixels [0, 255] that it was trained with
HEX_DIGITS = 16  # of a file's SHA-256, in the identity of features


class Backbone(nn.Module):
    """The layers that calculate feature maps; differentiable in the images alone."""

    def __init__(self, network: EfficientNetLite0) -> None:
        super().__init__()
        layers = list(_flat(fuse_conv_bn(network).children()))
        self.blocks = nn.ModuleList(nn.Sequential(*layers[start:end]) for start, end in pairwise((0, *ENDS)))
        for module in self.modules():
            for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
                _freeze(module, name, tensor)
        self.train(False)
        self.to(memory_format=torch.channels_last)
        self.dtype = torch.float32

    def forward(self, images: Tensor) -> list[Tensor]:
        """The maps of `images` [N, C, R, R] in [-1, 1], of 1 or 3 channels, each divided by its scale."""
        x = images.expand(-1, 3, -1, -1)
        if x.shape[-1] < SIDE:
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False)
        x, maps = (((x + 1) * 127.5 - MEAN) / STD).to(self.dtype), []
        for block, scale in zip(self.blocks, SCALES, strict=True):
            x = block(x)
            maps.append(x / scale)
        return maps


def fuse_conv_bn(network: nn.Module) -> nn.Module:
    """`network`, with batch normalizations that follow convolutions as a part of these: fewer passes over memory."""
    for sequence in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        for (_, conv), (following, norm) in pairwise(list(sequence.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                assert norm.running_mean is not None, "else it would not be pretrained"
                assert norm.running_var is not None, "likewise"
                factor = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
                _freeze(conv, "weight", conv.weight.detach() * factor.view(-1, 1, 1, 1))
                _freeze(conv, "bias", norm.bias.detach() - norm.running_mean * factor)
                setattr(sequence, following, nn.Identity())
    return network


def _freeze(module: nn.Module, name: str, value: Tensor) -> None:
    """Put `value` in place of a weight of `module`: no optimizer finds it, and no checkpoint holds it."""
    delattr(module, name)
    module.register_buffer(name, value.detach(), persistent=False)


def _flat(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Modules that are applied one after another, with those inside sequences."""
    for module in modules:
        if type(module) is nn.Sequential:
            yield from _flat(module)
        else:
            yield module


def load_backbone() -> Backbone:
    """The backbone with its pretrained weights; raises UserError where their package is missing."""
    return Backbone(efficientnet_lite0.load_efficientnet_lite0(_file()))


def backbone_fingerprint() -> str:
    """The name of the features and of their weights: what has to be the same for a checkpoint to fit."""
    return f"{LITE0}@{file_sha256(_file())[:HEX_DIGITS]}"


def _file() -> Path:
    return efficientnet_lite0.weights_file("Without them: model.features=null.")
