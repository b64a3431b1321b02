"""A feature network of five small convolutions, in place of a pretrained one."""

from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from pggan.networks.features import discriminator
from pggan.networks.features.backbone import Backbone, split_at_strides

WIDTHS = (3, 4, 5, 6, 7, 8)  # of the image, and of the maps at strides 2 to 32


def tiny_backbone(_: str = "tiny") -> Backbone:
    """Convolutions with stride 2, always the same ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [layer for i, o in pairwise(WIDTHS) for layer in (nn.Conv2d(i, o, 3, stride=2, padding=1), nn.ReLU6())]
    return Backbone(split_at_strides(layers, "tiny"), [127.5] * 3, [127.5] * 3)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Backbone]:
    """Every discriminator with features has the tiny network."""
    monkeypatch.setattr(discriminator, "new_backbone", tiny_backbone)
    return tiny_backbone
