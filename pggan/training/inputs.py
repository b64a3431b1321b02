"""The inputs of a training step.  The trainer draws random numbers before a step, so that the step only computes."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.losses.base import GradientPenalty, Loss, Reals
from pggan.networks.layers import ComputeOptions


@dataclass(frozen=True)
class StepSpec:
    """Settings that are constants in the CUDA graph of a step: steps with equal settings share one graph."""

    loss: Loss
    due: tuple[GradientPenalty, ...]
    options: ComputeOptions
    resolution: int
    missing_levels: int
    fading: bool
    batch: int  # images per step, summed over all ranks


class StepInputs(NamedTuple):
    """The settings of one step, and the images and random numbers of this rank's local batch.

    On CUDA, alpha, learning rates and EMA decay are tensors, so that a CUDA graph can be replayed with other values.
    """

    spec: StepSpec
    reals: Reals
    latents_d: Tensor  # [N, Z]: N latents of length Z for the fakes in D's update
    latents_g: Tensor  # [N, Z]: N latents of length Z for the fakes in G's update
    mix: Tensor | None  # [N, 1, 1, 1]: weights of the fakes in the interpolated images
    alpha: float | Tensor
    learning_rate_d: float | Tensor
    learning_rate_g: float | Tensor
    ema_decay: float | Tensor
    augment: Tensor | None = None  # [N, TRANSFORMS, 2, K]: ADA's random numbers from `ada.draw`

    def select(self, indices: Tensor) -> "StepInputs":
        """Keep only the rows `indices` [M] of the latents, `mix` and `augment`; `reals` stay as they are."""
        names = ("latents_d", "latents_g", "mix", "augment")
        drawn = {name: tensor[indices] for name in names if (tensor := getattr(self, name)) is not None}
        return self._replace(**drawn)


def scalars_to_tensors(inputs: StepInputs) -> StepInputs:
    """Convert learning rates, EMA decay and alpha to float32 tensors; alpha stays the float 1.0 unless layers fade in.

    The conversion changes results: products with float32 tensors and with Python floats round differently.
    """
    names = ("alpha",) * inputs.spec.fading + ("learning_rate_d", "learning_rate_g", "ema_decay")
    settings = {name: value for name in names if not isinstance(value := getattr(inputs, name), Tensor)}
    device = inputs.latents_d.device
    tensors = {name: torch.full((), value, dtype=torch.float32, device=device) for name, value in settings.items()}
    return inputs._replace(**tensors)  # type: ignore[arg-type]


def split_into_micro_batches(inputs: StepInputs, size: int | None, stddev_group: int) -> list[StepInputs]:
    """Split the inputs into micro-batches of at most `size` images; with `size` None, into one micro-batch.

    No group of the minibatch stddev is split, so that the gradients of micro-batches add up to the batch's gradient.
    """
    count = len(inputs.latents_d)
    if size is None or size >= count:
        return [inputs]
    group = min(stddev_group, count)
    members = torch.arange(count, device=inputs.latents_d.device).view(group, -1)  # [group, number of groups]
    parts = (part.flatten() for part in torch.split(members, max(size // group, 1), 1))
    return [inputs.select(part)._replace(reals=inputs.reals.select(part)) for part in parts]
