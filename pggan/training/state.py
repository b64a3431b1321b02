"""All that training changes, and nothing else: what a checkpoint holds and `state_sha256` is taken over."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

from pggan.config import OptimizerConfig
from pggan.core.architecture import Architecture
from pggan.networks.networks import Discriminator, Generator, initialize
from pggan.training.gradients.sparse_optimizer import SparseSteps

FIRST_SCALE = 2.0**12
LARGEST_SCALE = 2.0**24
SCALE_INTERVAL = 2000  # updates


@dataclass
class Player:
    """A network and its optimizer."""

    network: Generator | Discriminator
    optimizer: torch.optim.Adam | SparseSteps
    skipped: Tensor  # int32: updates left out in a row because their gradient was not finite
    scale: Tensor | None  # of the loss, in half precision: it keeps small gradients from vanishing
    since_scaling: Tensor  # int32: updates since the scale was changed

    @property
    def handles(self) -> list[Tensor]:
        """What the optimizer has of each of the network's weights: its memory, in order."""
        handles: list[Tensor] = self.optimizer.param_groups[0]["params"]
        return handles

    def gradient_norm(self) -> Tensor:
        """The norm of the whole gradient or, where that is what arrived, of the update."""
        if isinstance(self.optimizer, SparseSteps) and self.optimizer.updates is not None:
            return self.optimizer.updates.square().sum().sqrt()
        gradients = [weight.grad for weight in self.network.weights if weight.grad is not None]
        norm: Tensor = torch.stack(torch._foreach_norm(gradients)).norm()
        return norm if self.scale is None else norm / self.scale

    def step(self, learning_rate: float | Tensor, finite: Tensor) -> None:
        """Update the weights unless `finite` is false, and forget the gradient; without waiting for the device.

        The gradient is multiplied by `scale`, which halves when it overflows and doubles after 2000 good updates.
        Source: Micikevicius et al. 2018, section 3.2 (loss scaling).
        """
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        for weight, handle in zip(self.network.weights, self.handles, strict=True):
            handle.data = in_memory_order(weight.data)
            handle.grad = None if weight.grad is None else in_memory_order(weight.grad)
        # Fused optimizers take these two from its attributes, as torch.amp.GradScaler hands them over.
        optimizer: Any = self.optimizer
        optimizer.found_inf, optimizer.grad_scale = (~finite).float(), self.scale
        self.optimizer.step()
        self.forget_gradient()
        self.skipped.copy_(torch.where(finite, 0, self.skipped + 1))
        if self.scale is not None:
            grown = self.since_scaling + 1 >= SCALE_INTERVAL
            self.scale.mul_(torch.where(finite, torch.where(grown, 2.0, 1.0), 0.5)).clamp_(1.0, LARGEST_SCALE)
            self.since_scaling.copy_(torch.where(finite & ~grown, self.since_scaling + 1, 0))

    def forget_gradient(self) -> None:
        """Frees its memory; and levels that are not in use stay without gradient, so without update."""
        for weight, handle in zip(self.network.weights, self.handles, strict=True):
            weight.grad = handle.grad = None


@dataclass
class State:
    """Both players, the averaged generator and the clock."""

    g: Player
    d: Player
    average: Generator
    images: int = 0  # real images shown
    phase_index: int = -1  # of the last update; -1 before the first

    def reset_optimizers(self) -> None:
        """Forget Adam's moments, as the official code does whenever a phase begins."""
        for player in (self.g, self.d):
            player.optimizer.state.clear()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Every tensor of the state, by part and name."""
        return {
            "generator": dict(self.g.network.state_dict()),
            "discriminator": dict(self.d.network.state_dict()),
            "average": dict(self.average.state_dict()),
            "optimizer_g": dict(_moments(self.g)),
            "optimizer_d": dict(_moments(self.d)),
            "guards": dict(_guards(self)),
        }

    def load_tensors(self, parts: dict[str, dict[str, Tensor]]) -> None:
        """Take over what `tensors` gave; raises RuntimeError when names or shapes differ."""
        self.g.network.load_state_dict(parts["generator"])
        self.d.network.load_state_dict(parts["discriminator"])
        self.average.load_state_dict(parts["average"])
        _load_moments(self.g, parts["optimizer_g"])
        _load_moments(self.d, parts["optimizer_d"])
        saved = parts.get("guards", {})  # not in the oldest checkpoints
        for name, guard in _guards(self):
            if name in saved:  # a run may go on in another precision
                guard.copy_(saved[name])


def new_state(
    architecture: Architecture,
    optimizer: OptimizerConfig,
    seed: int,
    device: torch.device,
    *,
    half: bool = False,
    sparse: bool = False,
) -> State:
    """The state before the first image; `half`: losses are scaled, for half precision.

    `sparse`: updates are made elsewhere, and few of their entries arrive.
    """
    with torch.device(device):
        generator, discriminator = Generator(architecture), Discriminator(architecture)
    initialize(generator, seed, "generator")
    initialize(discriminator, seed, "discriminator")
    players = []
    for network in (generator, discriminator):
        # Convolutions are fastest with the channels of a pixel side by side, on CPUs and on tensor cores.
        for parameter in network.parameters():
            if parameter.ndim == 4:
                parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
        handles = [nn.Parameter(in_memory_order(weight.data)) for weight in network.weights]
        if sparse:
            steps: torch.optim.Adam | SparseSteps = SparseSteps(network.weights, handles)
        else:
            steps = torch.optim.Adam(
                handles,
                betas=(optimizer.beta1, optimizer.beta2),
                eps=optimizer.epsilon,
                fused=True,
                capturable=device.type == "cuda",  # may be part of a recorded step
            )
        counters = (torch.zeros((), dtype=torch.int32, device=device) for _ in range(2))
        scale = torch.tensor(FIRST_SCALE, device=device) if half else None
        players.append(Player(network, steps, next(counters), scale, next(counters)))
    return State(g=players[0], d=players[1], average=deepcopy(generator).requires_grad_(False))


def in_memory_order(weight: Tensor) -> Tensor:
    """A view whose sides are in the order of memory: [O, I, H, W] as [O, H, W, I].

    On CPUs, PyTorch's fused optimizers make a copy of gradients that are not, and do nothing with it.
    """
    return weight.permute(0, 2, 3, 1) if weight.ndim == 4 else weight


def follow(average: Generator, source: nn.Module, decay: float | Tensor) -> None:
    """Pull every weight of `average` to decay * average + (1 - decay) * source."""
    means = [mean.detach() for mean in average.parameters()]
    sources = [parameter.detach() for parameter in source.parameters()]
    if isinstance(decay, Tensor):
        torch._foreach_lerp_(means, sources, [1 - decay] * len(means))
    else:
        torch._foreach_lerp_(means, sources, 1 - decay)


def state_sha256(parts: dict[str, dict[str, Tensor]], images: int, phase_index: int) -> str:
    """A digest of names, types, shapes and bytes of all tensors, and of the clock."""
    digest = sha256(f"images={images} phase_index={phase_index}".encode())
    for part in sorted(parts):
        for name in sorted(parts[part]):
            tensor = parts[part][name].detach().cpu().contiguous()
            digest.update(f"{part}/{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _moments(player: Player) -> Iterator[tuple[str, Tensor]]:
    for (name, _), handle in zip(player.network.named_parameters(), player.handles, strict=True):
        for key, value in player.optimizer.state.get(handle, {}).items():
            yield f"{name}/{key}", value.permute(0, 3, 1, 2) if value.ndim == 4 else value


def _guards(state: State) -> Iterator[tuple[str, Tensor]]:
    for name, player in (("g", state.g), ("d", state.d)):
        yield f"{name}/skipped", player.skipped
        if player.scale is not None:
            yield f"{name}/scale", player.scale
            yield f"{name}/since_scaling", player.since_scaling


def _load_moments(player: Player, tensors: dict[str, Tensor]) -> None:
    player.optimizer.state.clear()
    if isinstance(player.optimizer, SparseSteps):
        return
    names = (name for name, _ in player.network.named_parameters())
    handles = dict(zip(names, player.handles, strict=True))
    for path, saved in tensors.items():
        name, _, key = path.rpartition("/")
        handle, value = handles.get(name), in_memory_order(saved)
        if handle is None or (saved.ndim > 0 and value.shape != handle.shape):
            raise RuntimeError(f"optimizer state {path} of shape {tuple(saved.shape)} fits no parameter")
        player.optimizer.state[handle][key] = value.to(handle.device, copy=True).contiguous()
