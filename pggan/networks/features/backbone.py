"""A pretrained network as four feature maps of an image, at strides of 4, 8, 16 and 32 pixels.

Its weights are constants: they are neither trained nor part of a checkpoint, which holds their checksum.
N batch, C channels, R resolution, S side of the images that the network is shown.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError
from pggan.networks.features import efficientnet_lite0
from pggan.networks.features.torchvision_model import (
    load_torchvision_model,
    new_torchvision_model,
    normalization_of,
)

LITE0 = "efficientnet-lite0"
WEIGHTS_KEY = "model.features_weights"
STRIDES = (4, 8, 16, 32)
CHOOSE = f"Choose model.features={LITE0}, or a sequence of convolutions such as torchvision:resnet18."
SIDE = 64  # to which smaller images are enlarged: the smallest whose map at stride 32 has neighbours
LITE0_ENDS = (6, 8, 14, 19)  # layers of efficientnet-lite0 up to the last map of each stride; others are for classes
LITE0_CHANNELS = (24, 40, 112, 320)
LITE0_SCALES = (16.0, 8.0, 4.0, 2.0)  # the powers of two nearest to the standard deviations of its maps, of noise
ENDS = (nn.AdaptiveAvgPool2d, nn.Dropout, nn.Flatten, nn.Linear)  # where a classifier begins
HEX_DIGITS = 16  # of a file's SHA-256, in the identity of features


class Backbone(nn.Module):
    """The part of a pretrained network that calculates feature maps; differentiable in the images alone."""

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        blocks: Iterable[tuple[nn.Sequential, int]],
        mean: list[float],
        std: list[float],
        scales: Sequence[float] = (1.0,) * len(STRIDES),
    ) -> None:
        """Args: blocks: one for each stride, applied one after another, each with the channels of its map; mean, std:
        of the pixels [0, 255] that they were trained with; scales: what the maps are divided by.
        """
        super().__init__()
        self.scales = scales
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1))
        self.train(False)
        self.blocks, self.channels = nn.ModuleList(), []
        for block, channels in blocks:
            self.blocks.append(block)
            self.channels.append(channels)
        freeze(self)
        self.to(memory_format=torch.channels_last)

    def prepare(self, images: Tensor) -> Tensor:
        """Images [N, C, R, R] in [-1, 1], of 1 or 3 channels, as the network expects them: [N, 3, S, S]."""
        x = images.expand(-1, 3, -1, -1)
        if x.shape[-1] < SIDE:
            x = F.interpolate(x, (SIDE, SIDE), mode="bilinear", align_corners=False)
        mean, std = self.mean.to(x.dtype), self.std.to(x.dtype)
        return ((x + 1) * 127.5 - mean) / std


def split_at_strides(layers: Iterable[nn.Module], name: str) -> Iterator[tuple[nn.Sequential, int]]:
    """The layers as four blocks, each of which ends with the last map of its stride, and the channels of that map.

    Raises UserError unless there is a map at each stride.
    """
    found: list[nn.Module] = []
    sides: list[tuple[int, int]] = []  # stride and channels after each layer
    with torch.no_grad():
        x = torch.zeros(1, 3, SIDE, SIDE)
        for layer in layers:
            if isinstance(layer, ENDS):
                break
            x = layer.train(False)(x)
            if x.ndim != 4 or SIDE % x.shape[-1]:
                break
            found.append(layer)
            sides.append((SIDE // x.shape[-1], x.shape[1]))
    strides = [stride for stride, _ in sides]
    if not set(STRIDES) <= set(strides):
        problem = f"{name} has no feature maps at strides of {', '.join(map(str, STRIDES))} pixels."
        raise UserError(problem, CHOOSE)
    ends = [0, *(len(strides) - strides[::-1].index(stride) for stride in STRIDES)]
    for start, end in pairwise(ends):
        yield nn.Sequential(*found[start:end]), sides[end - 1][1]


def flatten_sequential(modules: Iterable[nn.Module]) -> Iterator[nn.Module]:
    """Modules that are applied one after another, with those inside sequences."""
    for module in modules:
        if type(module) is nn.Sequential:
            yield from flatten_sequential(module)
        else:
            yield module


def fuse_conv_bn(network: nn.Module) -> nn.Module:
    """`network`, with batch normalizations that follow convolutions as a part of these: fewer passes over memory."""
    network.train(False)
    for sequence in [module for module in network.modules() if isinstance(module, nn.Sequential)]:
        for (_, conv), (following, norm) in pairwise(list(sequence.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                assert norm.running_mean is not None, "else it would not be pretrained"
                assert norm.running_var is not None, "likewise"
                weight, bias = conv.weight.detach(), norm.bias.detach()
                if not weight.is_meta:  # else shapes are all that is asked for, and arithmetic would import _dynamo
                    factor = norm.weight * torch.rsqrt(norm.running_var + norm.eps)
                    weight = weight * factor.view(-1, 1, 1, 1)
                    bias = bias - norm.running_mean * factor
                    bias = bias if conv.bias is None else bias + conv.bias * factor
                freeze_tensor(conv, "weight", weight)
                freeze_tensor(conv, "bias", bias)
                setattr(sequence, following, nn.Identity())
    return network


def freeze(network: nn.Module) -> None:
    """Make all weights of `network` constants."""
    for module in network.modules():
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]:
            freeze_tensor(module, name, tensor)


def freeze_tensor(module: nn.Module, name: str, value: Tensor) -> None:
    """Put `value` in place of a weight of `module`: no optimizer finds it, and no checkpoint holds it."""
    delattr(module, name)
    module.register_buffer(name, value.detach(), persistent=False)


def new_backbone(name: str) -> Backbone:
    """The backbone `name`, whose weights are yet to be loaded."""
    if name == LITE0:
        return _lite0(efficientnet_lite0.EfficientNetLite0())
    return _torchvision(new_torchvision_model(name.partition(":")[2]), name)


def load_backbone(name: str, weights: str | None) -> Backbone:
    """The backbone `name` with its pretrained weights; raises UserError where these or their package are missing."""
    if name == LITE0:
        return _lite0(efficientnet_lite0.load_efficientnet_lite0(_lite0_file(weights)))
    network, _ = load_torchvision_model(name.partition(":")[2], weights, WEIGHTS_KEY)
    try:
        with FakeTensorMode():  # on which steps are counted
            new_backbone(name)
    except UserError:
        raise
    except Exception as error:  # some networks calculate with tensors while they are built, or expect one side
        problem = f"{name} can't be used as features: {str(error).splitlines()[0]}"
        raise UserError(problem, CHOOSE) from error
    return _torchvision(network, name)


def backbone_fingerprint(name: str, weights: str | None) -> str:
    """The name of features and of their weights: what has to be the same for a checkpoint to fit."""
    if name == LITE0:
        path = _lite0_file(weights)
    else:
        _, path = load_torchvision_model(name.partition(":")[2], weights, WEIGHTS_KEY)
    return f"{name}@{file_sha256(path)[:HEX_DIGITS]}"


def _lite0_file(weights: str | None) -> Path:
    if weights is not None:
        raise UserError(f"model.features={LITE0} takes no {WEIGHTS_KEY}=.", "Leave it out: a package carries them.")
    return efficientnet_lite0.weights_file("Without them: model.features=null.")


def _lite0(network: efficientnet_lite0.EfficientNetLite0) -> Backbone:
    layers = list(flatten_sequential(fuse_conv_bn(network).children()))
    blocks = [nn.Sequential(*layers[start:end]) for start, end in pairwise((0, *LITE0_ENDS))]
    return Backbone(zip(blocks, LITE0_CHANNELS, strict=True), [127.0] * 3, [128.0] * 3, LITE0_SCALES)


def _torchvision(network: nn.Module, name: str) -> Backbone:
    mean, std = normalization_of(name.partition(":")[2])
    return Backbone(split_at_strides(flatten_sequential(fuse_conv_bn(network).children()), name), mean, std)
