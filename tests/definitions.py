"""What many tests start from: the paper's networks, its optimizer and its loss; a generator as if it were trained."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

from pggan.core.architecture import Architecture, Resampling
from pggan.losses import Logistic, Relativistic, WganGp
from pggan.losses.base import Loss
from pggan.networks.networks import initialize

PAPER = Architecture(
    resolution=1024,
    channels=3,
    num_classes=0,
    latent_size=512,
    fmap_base=8192,
    fmap_decay=1.0,
    fmap_max=512,
    stddev_group=4,
    resampling=Resampling.fused,
)
WGAN_GP = WganGp(penalty_weight=10.0, target=1.0, reg_interval=1)
LOSSES: dict[str, Loss] = {
    "wgan_gp": WGAN_GP,
    "logistic": Logistic(gamma=1.0, reg_interval=1),
    "relativistic": Relativistic(gamma=1.0, reg_interval=1),
}


def variant(base: Architecture = PAPER, **changes: Any) -> Architecture:
    """`base` with other numbers."""
    return dataclasses.replace(base, **changes)


def ready(kind: Callable[[Architecture], Any], architecture: Architecture) -> Any:
    """A network with initial weights and, so that no part goes unnoticed, biases that are not 0."""
    network, random = kind(architecture), torch.Generator().manual_seed(0)
    initialize(network, 0, network.__class__.__name__)
    for name, weight in network.named_parameters():
        if name.endswith("bias"):
            weight.data.normal_(0, 0.3, generator=random)
    return network


def before_step(optimizer: Any, call: Callable[[], object]) -> None:
    """Call something before every step of an optimizer."""
    step = optimizer.step
    optimizer.step = lambda *given: (call(), step(*given))
