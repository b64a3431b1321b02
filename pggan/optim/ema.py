"""The averaged generator: an exponential moving average of G's weights."""

import torch
from torch import Tensor

from pggan.config import EmaConfig
from pggan.networks.networks import ProgressiveNetwork


def ema_decay(config: EmaConfig, images: int, batch: int) -> float:
    """The decay of one update of `batch` images after `images`.

    By half-life: the weight of an old value halves every `half_life_images`; with `rampup`, the half-life is at most
    that share of the images shown, so that the average follows quickly at first.
    Source: per-update 0.999 is the paper's; half-life and ramp-up are Karras et al. 2020's.
    """
    if config.decay_per_update is not None:
        return config.decay_per_update
    assert config.half_life_images is not None, "checked by EmaConfig"
    half_life = config.half_life_images
    if config.rampup is not None:
        half_life = min(half_life, images * config.rampup)
    return float(0.5 ** (batch / max(half_life, 1e-8)))


def update_ema(g_ema: ProgressiveNetwork, g: ProgressiveNetwork, decay: float | Tensor) -> None:
    """Set every weight of `g_ema` to decay * g_ema + (1 - decay) * g; a tensor `decay` can change in a CUDA graph."""
    averages = [weight.detach() for weight in g_ema.weights]
    weights = [weight.detach() for weight in g.weights]
    if isinstance(decay, Tensor):
        torch._foreach_lerp_(averages, weights, [1 - decay] * len(averages))
    else:
        torch._foreach_lerp_(averages, weights, 1 - decay)
