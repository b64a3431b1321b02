"""All that training changes, and nothing else: what a checkpoint holds and `state_sha256` is taken over."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256

import torch
from torch import Tensor, nn

from pggan.architecture import Architecture
from pggan.config import OptimizerConfig
from pggan.networks import Discriminator, Generator, initialize


@dataclass
class Player:
    """A network and its optimizer."""

    network: nn.Module
    optimizer: torch.optim.Adam
    # Updates in a row that were skipped because their gradients were not finite: int32 on the network's device.
    skipped: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int32))


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
        }

    def load_tensors(self, parts: dict[str, dict[str, Tensor]]) -> None:
        """Take over what `tensors` gave; raises RuntimeError when names or shapes differ."""
        self.g.network.load_state_dict(parts["generator"])
        self.d.network.load_state_dict(parts["discriminator"])
        self.average.load_state_dict(parts["average"])
        _load_moments(self.g, parts["optimizer_g"])
        _load_moments(self.d, parts["optimizer_d"])


def new_state(architecture: Architecture, optimizer: OptimizerConfig, seed: int, device: torch.device) -> State:
    """The state before the first image."""
    generator, discriminator = Generator(architecture), Discriminator(architecture)
    initialize(generator, seed, "generator")
    initialize(discriminator, seed, "discriminator")
    players = []
    for network in (generator, discriminator):
        # Convolutions are fastest with the channels of a pixel side by side, on CPUs and on tensor cores.
        network.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        adam = torch.optim.Adam(
            network.parameters(),
            betas=(optimizer.beta1, optimizer.beta2),
            eps=optimizer.epsilon,
            fused=True,
        )
        players.append(Player(network, adam, torch.zeros((), dtype=torch.int32, device=device)))
    return State(g=players[0], d=players[1], average=deepcopy(generator).requires_grad_(False))


def follow(average: Generator, source: nn.Module, decay: float) -> None:
    """Pull every weight of `average` to decay * average + (1 - decay) * source."""
    means = [mean.detach() for mean in average.parameters()]
    torch._foreach_lerp_(means, [parameter.detach() for parameter in source.parameters()], 1 - decay)


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
    for name, parameter in player.network.named_parameters():
        for key, value in player.optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def _load_moments(player: Player, tensors: dict[str, Tensor]) -> None:
    player.optimizer.state.clear()
    parameters = dict(player.network.named_parameters())
    for path, saved in tensors.items():
        name, _, key = path.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None or (saved.ndim > 0 and saved.shape != parameter.shape):
            raise RuntimeError(f"optimizer state {path} of shape {tuple(saved.shape)} fits no parameter")
        # Fused Adam reads memory in order: a moment needs the strides of its parameter.
        value = torch.empty_like(parameter) if saved.ndim > 0 else torch.empty_like(saved)
        player.optimizer.state[parameter][key] = value.copy_(saved).to(parameter.device)
