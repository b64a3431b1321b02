"""The inputs of a training step, which are drawn before the step."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.losses.base import GradientPenalty, Loss, Reals
from pggan.networks.layers import ComputeOptions


@dataclass(frozen=True)
class StepSpec:
    """The settings that a CUDA graph can't change.  Only steps with equal settings can share one graph."""

    loss: Loss
    due: tuple[GradientPenalty, ...]
    options: ComputeOptions
    resolution: int
    missing_levels: int
    fading: bool
    batch: int  # number of images of all ranks together


class StepInputs(NamedTuple):
    """The settings, images and random numbers of one training step on this rank."""

    spec: StepSpec
    reals: Reals
    latents_d: Tensor  # [N, latent size]: latents of the fakes in D's update
    latents_g: Tensor  # [N, latent size]: latents of the fakes in G's update
    mix: Tensor | None  # [N, 1, 1, 1]: for WGAN-GP, weights that interpolate between reals and fakes
    alpha: float | Tensor
    learning_rate_d: float | Tensor
    learning_rate_g: float | Tensor
    ema_decay: float | Tensor
    augment: Tensor | None = None  # ADA's random numbers, as `ada.draw` returns them

    def select(self, indices: Tensor) -> "StepInputs":
        """Keep only the random numbers drawn for the images at `indices`; `reals` stays unchanged."""
        names = ("latents_d", "latents_g", "mix", "augment")
        drawn = {name: tensor[indices] for name in names if (tensor := getattr(self, name)) is not None}
        return self._replace(**drawn)


def scalars_to_tensors(inputs: StepInputs) -> StepInputs:
    """Convert the scalars to float32 tensors, so that a CUDA graph can be replayed with other values."""
    names = ("alpha",) * inputs.spec.fading + ("learning_rate_d", "learning_rate_g", "ema_decay")
    settings = {name: value for name in names if not isinstance(value := getattr(inputs, name), Tensor)}
    device = inputs.latents_d.device
    tensors = {name: torch.full((), value, dtype=torch.float32, device=device) for name, value in settings.items()}
    return inputs._replace(**tensors)  # type: ignore[arg-type]


def split_into_micro_batches(inputs: StepInputs, size: int | None, stddev_group: int) -> list[StepInputs]:
    """Split the inputs into micro-batches of at most `size` images, or into one micro-batch if `size` is None.

    A group of minibatch stddev is never split, so the gradients of the micro-batches add up to the batch's gradient.
    """
    count = len(inputs.latents_d)
    if size is None or size >= count:
        return [inputs]
    group = min(stddev_group, count)
    members = torch.arange(count, device=inputs.latents_d.device).view(group, -1)  # [group, number of groups]
    parts = (part.flatten() for part in torch.split(members, max(size // group, 1), 1))
    return [inputs.select(part)._replace(reals=inputs.reals.select(part)) for part in parts]
