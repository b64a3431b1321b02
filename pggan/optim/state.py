"""The training state: all that training changes and checkpoints store."""

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

import torch
from torch import Tensor, nn

from pggan.core.architecture import Architecture
from pggan.losses.ada import AdaptiveP
from pggan.networks.layers import ProgressiveNetwork
from pggan.networks.networks import Generator, initialize, new_discriminator
from pggan.optim.updates import Adam, flatten_storage, new_moments

# Loss scaling for float16 (Micikevicius et al. 2018, section 3.2), as torch.amp.GradScaler does it.
INIT_SCALE = 2.0**12  # first loss scale; with GradScaler's 2^16, the first updates would overflow and be skipped
MAX_SCALE = 2.0**24  # largest loss scale; a larger scale is useless, because float16 numbers underflow below 2^-24
GROWTH_INTERVAL = 2000  # the loss scale doubles after this many updates without an overflow (GradScaler's default)

AUGMENTATION = "augmentation"  # key of ADA's tensors in a checkpoint; absent without ADA

StateDicts = dict[str, dict[str, Tensor]]  # {component: {name: tensor}} of a checkpoint


class Trainable:
    """A network, its optimizer, and its loss scale."""

    def __init__(self, name: str, network: ProgressiveNetwork, *, half: bool) -> None:
        """`name` is G or D.  With `half`, losses are scaled for training in float16."""
        device = network.weights[0].device
        self.name, self.network, self.optimizer = name, network, Adam(network.weights)
        self.adaptive_p: AdaptiveP | None = None  # ADA's augmentation probability; None for G and without ADA
        self.skipped = torch.zeros((), dtype=torch.int32, device=device)  # number of updates skipped in a row
        self.scale = torch.tensor(INIT_SCALE, device=device) if half else None
        self.since_scaling = torch.zeros((), dtype=torch.int32, device=device)  # updates since the loss scale changed

    @property
    def weights_in_use(self) -> list[nn.Parameter]:
        return [weight for weight in self.network.weights if weight.grad is not None]

    def gradient_norm(self) -> Tensor:
        """The L2 norm of all gradients together or, with gradient compression (DGC), of the update."""
        gradients = [weight.grad for weight in self.network.weights if weight.grad is not None]
        norm: Tensor = torch.stack(torch._foreach_norm(gradients)).norm()
        return norm if self.scale is None else norm / self.scale

    def update(self, learning_rate: float | Tensor, wrong: Tensor, skip: Tensor) -> None:
        """Take one optimizer step, without waiting for the GPU, and free the gradients.

        If `wrong` is true (infinite or NaN loss or gradient), the step is skipped.  `skip` is `wrong` as float32.
        """
        self.optimizer.step(learning_rate, skip, self.scale)
        self.zero_grad()
        self.skipped.add_(1).mul_(wrong)
        if self.scale is not None:
            grown = self.since_scaling + 1 >= GROWTH_INTERVAL
            self.scale.mul_(torch.where(wrong, 0.5, torch.where(grown, 2.0, 1.0))).clamp_(1.0, MAX_SCALE)
            self.since_scaling.add_(1).mul_(~(wrong | grown))

    def zero_grad(self) -> None:
        """Set gradients to None, not 0, because Adam would also update the moments of weights whose gradient is 0."""
        for weight in self.network.weights:
            weight.grad = None


@dataclass
class State:
    """G and D with their optimizers, the averaged generator (EMA), and the progress of training."""

    g: Trainable
    d: Trainable
    g_ema: Generator
    flat_weights: Tensor  # [P]; G's weights are views of this tensor
    flat_averages: Tensor  # [P]; the weights of `g_ema` are views of this tensor
    images: int = 0  # number of real images shown
    phase_index: int = -1  # index of the latest step's phase; -1 before the first step

    def reset_optimizers(self) -> None:
        """Reset Adam's moments, as the official code does whenever a phase begins."""
        for trainable in (self.g, self.d):
            trainable.optimizer.state.clear()

    def state_dict(self) -> StateDicts:
        state_dicts: StateDicts = {
            "generator": dict(self.g.network.state_dict()),
            "discriminator": dict(self.d.network.state_dict()),
            "generator_ema": dict(self.g_ema.state_dict()),
            "optimizer_g": _moments(self.g),
            "optimizer_d": _moments(self.d),
            "grad_scaler": dict(_grad_scalers(self)),
        }
        if self.d.adaptive_p is not None:
            state_dicts[AUGMENTATION] = self.d.adaptive_p.state_dict()
        return state_dicts

    def load_state_dict(self, state_dicts: StateDicts) -> None:
        """Load a checkpoint, which may lack ADA's p and the loss scale.  Raises RuntimeError if tensors do not fit."""
        self.g.network.load_state_dict(state_dicts["generator"])
        self.d.network.load_state_dict(state_dicts["discriminator"])
        self.g_ema.load_state_dict(state_dicts["generator_ema"])
        _load_moments(self.g, state_dicts["optimizer_g"])
        _load_moments(self.d, state_dicts["optimizer_d"])
        for name, tensor in _grad_scalers(self):
            if name in state_dicts["grad_scaler"]:
                tensor.copy_(state_dicts["grad_scaler"][name])
        if self.d.adaptive_p is not None:
            self.d.adaptive_p.load_state_dict(state_dicts.get(AUGMENTATION, {}))


def new_state(architecture: Architecture, seed: int, device: torch.device, *, half: bool = False) -> State:
    """Build a new state.  `seed`: for initial weights, except in a user's own D; `half`: scale losses for float16."""
    with torch.device(device):
        generator, discriminator = Generator(architecture), new_discriminator(architecture)
        g_ema = Generator(architecture)  # deepcopy(generator) would corrupt memory if tensors are PyTorch's FakeTensors
    initialize(generator, seed, "generator")
    if architecture.discriminator is None:
        initialize(discriminator, seed, "discriminator")
    for network in (generator, discriminator, g_ema):
        for weight in network.weights:
            if weight.ndim == 4:  # channels last is fastest, on CPUs and on tensor cores
                weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    flat_weights, flat_averages, _ = (flatten_storage(network.weights) for network in (generator, g_ema, discriminator))
    g_ema.train(False).requires_grad_(False).load_state_dict(generator.state_dict())
    return State(
        Trainable("G", generator, half=half),
        Trainable("D", discriminator, half=half),
        g_ema,
        flat_weights,
        flat_averages,
    )


def state_sha256(state_dicts: StateDicts, images: int, phase_index: int) -> str:
    """A SHA-256 of the image count, the phase, and the names, dtypes, shapes and bytes of all tensors."""
    digest = sha256(f"images={images} phase_index={phase_index}".encode())
    for component in sorted(state_dicts):
        for name in sorted(state_dicts[component]):
            tensor = state_dicts[component][name].detach().cpu().contiguous()
            digest.update(f"{component}/{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _moments(trainable: Trainable) -> dict[str, Tensor]:
    moments = trainable.optimizer.state
    named = trainable.network.named_parameters()
    return {f"{name}/{key}": value for name, weight in named for key, value in moments.get(weight, {}).items()}


def _grad_scalers(state: State) -> Iterator[tuple[str, Tensor]]:
    for name, trainable in (("g", state.g), ("d", state.d)):
        yield f"{name}/skipped", trainable.skipped
        if trainable.scale is not None:
            yield f"{name}/scale", trainable.scale
            yield f"{name}/since_scaling", trainable.since_scaling


def _load_moments(trainable: Trainable, tensors: dict[str, Tensor]) -> None:
    moments, weights = trainable.optimizer.state, dict(trainable.network.named_parameters())
    moments.clear()
    for path, saved in tensors.items():
        name, _, key = path.rpartition("/")
        weight = weights.get(name)
        if weight is None or (saved.ndim > 0 and saved.shape != weight.shape):
            raise RuntimeError(f"optimizer state {path} of shape {tuple(saved.shape)} fits no weight")
        moments.setdefault(weight, new_moments(weight))[key].copy_(saved)
