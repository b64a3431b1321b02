"""The averaged generator: an exponential moving average of G's weights."""

from torch import Tensor

from pggan.config import EmaConfig
from pggan.networks.layers import ProgressiveNetwork
from pggan.optim.flat_memory import flat_storage


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
    averages, weights = flat_storage(g_ema.weights), flat_storage(g.weights)
    if averages is not None and weights is not None and same_strides(g_ema, g):
        averages.lerp_(weights, 1 - decay)
        return
    for average, weight in zip(g_ema.weights, g.weights, strict=True):
        average.detach().lerp_(weight.detach(), 1 - decay)


def same_strides(one: ProgressiveNetwork, other: ProgressiveNetwork) -> bool:
    """Whether all weights have the same order in memory."""
    return all(a.stride() == b.stride() for a, b in zip(one.weights, other.weights, strict=True))
