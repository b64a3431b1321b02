"""Counter-based randomness: random numbers are a function of (seed, purpose, count), not of numbers drawn before.

So a resumed run draws the same numbers as an uninterrupted run, and checkpoints need no random generator state.
"""

from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor


def counter_seed(seed: int, purpose: str, count: int) -> int:
    """A 63-bit seed for one purpose at one count; different arguments give unrelated random numbers."""
    digest = blake2b(f"{seed}/{purpose}/{count}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator_for(seed: int, purpose: str, count: int, device: torch.device | None = None) -> torch.Generator:
    """A new torch.Generator on `device` (default: CPU) with the seed `counter_seed(seed, purpose, count)`."""
    return torch.Generator(device or "cpu").manual_seed(counter_seed(seed, purpose, count))


@dataclass(frozen=True)
class StepRng:
    """The random numbers of the training step at image count `images`."""

    seed: int
    images: int
    device: torch.device

    def normal(self, purpose: str, *shape: int) -> Tensor:
        """N(0, 1) numbers of `shape`, float32."""
        return torch.randn(shape, generator=self._generator(purpose), device=self.device)

    def uniform(self, purpose: str, *shape: int) -> Tensor:
        """Numbers in [0, 1) of `shape`, float32."""
        return torch.rand(shape, generator=self._generator(purpose), device=self.device)

    def integers(self, purpose: str, below: int, *shape: int) -> Tensor:
        """Integers in [0, below) of `shape`, int64."""
        return torch.randint(below, shape, generator=self._generator(purpose), device=self.device)

    def _generator(self, purpose: str) -> torch.Generator:
        return generator_for(self.seed, purpose, self.images, self.device)
