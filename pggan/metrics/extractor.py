"""A feature extractor: a network with a name that stands for everything that shapes its features."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pggan.core.errors import UserError
from pggan.training.compute_options import full_float32

CHUNK = 32  # images in one forward pass


@dataclass(frozen=True)
class Extractor:
    """A feature extractor.  `name` is what metrics carry; `facts` say what it stands for.

    Grey images are repeated to three channels; of images with four, the first three are taken.  Whatever precision
    training has, features are calculated in float32: those of reals are kept for other runs and commands.
    """

    name: str
    network: Callable[[Tensor], Tensor]  # uint8 [N, 3, R, R] -> [N, F]
    facts: dict[str, Any] = field(default_factory=dict)
    repeatable: bool = True  # whether features with this name may be kept for later evaluations
    prefix: str = ""  # of the keys in messages

    @torch.no_grad()
    def features(self, images: Tensor) -> Tensor:
        """Features float32 [N, F], in host memory, of images uint8 [N, C, R, R].

        Raises UserError where the network gives anything but rows of finite numbers.
        """
        colour = images[:, :3] if images.shape[1] >= 3 else images[:, :1].expand(-1, 3, -1, -1)
        with full_float32():
            found = [self.network(chunk) for chunk in torch.split(colour, CHUNK)]
        if any(part.ndim != 2 for part in found):
            raise UserError(
                f"Extractor {self.name} gives features of shape {list(found[0].shape)}.", "It has to give [N, F]."
            )
        features = torch.cat(found).float().cpu()
        if not features.isfinite().all():
            problem = f"Extractor {self.name} gives features that are NaN or infinite."
            raise UserError(problem, f"Look at its network and weights, or choose another {self.prefix}extractor=.")
        return features


class Resized(nn.Module):
    """A network behind a bicubic resize with antialiasing, clipped to [0, 255], and a normalization per channel."""

    mean: Tensor
    std: Tensor

    def __init__(self, network: nn.Module, side: int, mean: list[float], std: list[float]) -> None:
        super().__init__()
        self.network, self.side = network, side
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(std).view(1, 3, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        size = (self.side, self.side)
        resized = F.interpolate(images.float(), size=size, mode="bicubic", antialias=True).clamp(0, 255)
        features: Tensor = self.network((resized - self.mean) / self.std)
        return features.flatten(1)
