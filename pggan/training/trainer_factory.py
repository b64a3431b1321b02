"""The maker of states and trainers, for a configuration and a device: for training, counting and checking alike."""

from dataclasses import dataclass, field
from typing import Any

import torch

from pggan.augmentation.ada import Ada, AdaptiveP
from pggan.config import OptimizerConfig, TrainerConfig
from pggan.core.architecture import Architecture
from pggan.core.errors import UserError
from pggan.losses import build_loss
from pggan.losses.base import Loss
from pggan.networks.layers import ComputeOptions
from pggan.optim.state import State, new_state
from pggan.optim.updates import AdamOptions
from pggan.training.compute_options import captures_graphs, compute_options
from pggan.training.trainer import Trainer


@dataclass(frozen=True)
class TrainerFactory:
    """Makes states and trainers: how steps are calculated; networks, batches and other ranks come on top."""

    loss: Loss
    optimizer: OptimizerConfig
    options: ComputeOptions = field(default_factory=ComputeOptions)
    augmentation: Ada | None = None
    capture: bool = False  # steps are replayed as CUDA graphs

    @classmethod
    def of(cls, config: TrainerConfig, device: torch.device, world_size: int) -> "TrainerFactory":
        """The factory that `config` asks for; raises UserError for what is not valid, or can't be had on `device`."""
        loss, augmentation = build_loss(vars(config.loss)), choose_augmentation(config, device)
        options = compute_options(config.precision, config.compute, device)
        capture = captures_graphs(config.compute, device) and not sends_sparse_updates(config, world_size)
        return cls(loss, config.optimizer, options, augmentation, capture)

    def new_state(self, architecture: Architecture, seed: int, device: torch.device) -> State:
        """The state of new networks before the first image."""
        half = self.options.dtype is torch.float16
        adam = AdamOptions(self.optimizer.beta1, self.optimizer.beta2, self.optimizer.epsilon)
        state = new_state(architecture, adam, seed, device, half=half)
        state.d.adaptive_p = AdaptiveP.of(self.augmentation, self.loss.mean_sign, device)
        return state

    def trainer(self, state: State, **more: Any) -> Trainer:
        """The trainer of `state`; `more`: what else `Trainer` takes."""
        return Trainer(state, self.loss, self.options, augmentation=self.augmentation, capture=self.capture, **more)


def choose_augmentation(config: TrainerConfig, device: torch.device) -> Ada | None:
    """The augmentation that `augmentation=` asks for; raises UserError where it is not to be had on `device`."""
    keys = vars(config.augmentation)
    if keys["name"] == "none":
        return None
    if config.compute.deterministic and device.type == "cuda":
        problem = "compute.deterministic=true does not work with augmentation=ada on a GPU, whose pixels move."
        raise UserError(problem, "Set compute.deterministic=false.")
    return Ada(**{key: keys[key] for key in keys if key != "name"})


def sends_sparse_updates(config: TrainerConfig, world_size: int) -> bool:
    """Whether gradients are compressed: the gradient reducer makes the updates, each rank has a state of its own."""
    return config.gradients.name == "dgc" and world_size > 1
