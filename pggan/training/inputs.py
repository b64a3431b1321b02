"""All that one training step needs to know, drawn beforehand, so that the step is arithmetic alone."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from pggan.losses.base import GradientPenalty, Loss, Reals
from pggan.networks.layers import ComputeOptions


@dataclass(frozen=True)
class StepSpec:
    """Static key of a step: steps with the same one share a CUDA graph."""

    loss: Loss
    due: tuple[GradientPenalty, ...]
    options: ComputeOptions
    resolution: int
    missing_levels: int
    fading: bool
    batch: int  # images of all ranks


class StepInputs(NamedTuple):
    """The images, random numbers and settings of one step, of this rank's local batch.

    The settings are tensors on CUDA: inside a graph they are set before each replay.
    """

    spec: StepSpec
    reals: Reals
    latents_d: Tensor  # [N, Z]
    latents_g: Tensor  # [N, Z]
    mix: Tensor | None  # [N, 1, 1, 1] in [0, 1)
    alpha: float | Tensor
    learning_rate_d: float | Tensor
    learning_rate_g: float | Tensor
    ema_decay: float | Tensor
    augment: Tensor | None = None  # [N, TRANSFORMS, …], random numbers of the augmentation

    def select(self, indices: Tensor) -> "StepInputs":
        """The random numbers at `indices` [M], and the same images."""
        names = ("latents_d", "latents_g", "mix", "augment")
        drawn = {name: tensor[indices] for name in names if (tensor := getattr(self, name)) is not None}
        return self._replace(**drawn)


def scalars_to_tensors(inputs: StepInputs) -> StepInputs:
    """The inputs with settings in float32 on the device; alpha stays 1.0 unless layers are fading in.

    A product with such a tensor rounds differently from one with a Python float.
    """
    names = ("alpha",) * inputs.spec.fading + ("learning_rate_d", "learning_rate_g", "ema_decay")
    settings = {name: value for name in names if not isinstance(value := getattr(inputs, name), Tensor)}
    device = inputs.latents_d.device
    tensors = {name: torch.full((), value, dtype=torch.float32, device=device) for name, value in settings.items()}
    return inputs._replace(**tensors)  # type: ignore[arg-type]


def split_into_micro_batches(inputs: StepInputs, size: int | None, stddev_group: int) -> list[StepInputs]:
    """The inputs as micro-batches of at most `size` images, or as one.

    A micro-batch is made of whole groups of minibatch stddev: their gradients add up to the gradient of the batch.
    """
    count = len(inputs.latents_d)
    if size is None or size >= count:
        return [inputs]
    group = min(stddev_group, count)
    members = torch.arange(count, device=inputs.latents_d.device).view(group, -1)  # [group, groups]: they are strided
    parts = (part.flatten() for part in torch.split(members, max(size // group, 1), 1))
    return [inputs.select(part)._replace(reals=inputs.reals.select(part)) for part in parts]
