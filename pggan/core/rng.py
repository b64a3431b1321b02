"""Random numbers that depend only on a seed, a purpose and a count; so checkpoints store no random state."""

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


def counter_seed(seed: int, purpose: str, count: int) -> int:
    """A 63-bit hash of a seed, a purpose such as 'latent', and a count such as the number of images shown."""
    return int.from_bytes(blake2b(f"{seed}/{purpose}/{count}".encode(), digest_size=8).digest(), "little") >> 1


def generator_for(seed: int, purpose: str, count: int, device: torch.device | None = None) -> torch.Generator:
    """A new torch.Generator on `device` (default: CPU) with the seed `counter_seed(seed, purpose, count)`."""
    return torch.Generator(device or "cpu").manual_seed(counter_seed(seed, purpose, count))


@dataclass(frozen=True)
class StepRng:
    """Random numbers for the training step that begins after `images` images; each `purpose` gets different numbers."""

    seed: int
    images: int
    device: torch.device

    def normal(self, purpose: str, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._generator(purpose), device=self.device)

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator(purpose), device=self.device)

    def integers(self, purpose: str, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self._generator(purpose), device=self.device)

    def _generator(self, purpose: str) -> torch.Generator:
        return generator_for(self.seed, purpose, self.images, self.device)
