"""A generator as a program of `torch.export`, which runs without the code of this package."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pggan.core.atomic_io import atomic_write
from pggan.interop.export.comparison import Inputs, example_inputs, largest_difference
from pggan.networks.networks import Generator


class _Stage(nn.Module):
    """The generator at one resolution and alpha."""

    def __init__(self, network: Generator, resolution: int, alpha: float) -> None:
        super().__init__()
        self.network, self.resolution, self.alpha = network, resolution, alpha

    def forward(self, latents: Tensor, labels: Tensor | None = None) -> Tensor:
        return self.network(latents, labels, self.resolution, self.alpha)  # type: ignore[no-any-return]


def write_torch_program(
    network: Generator, path: Path, resolution: int, alpha: float, properties: dict[str, str]
) -> float:
    """Write `network`, on the CPU, as a .pt2 file; returns the largest difference of its images to the network's.

    Raises DifferenceError when the images differ, or OSError; then nothing is kept.
    """
    batch: Any = torch.export.Dim("N", min=1)
    inputs = example_inputs(network, 2)
    shapes = tuple({0: batch} for _ in inputs)
    stage = _Stage(network, resolution, alpha)
    program = torch.export.export(stage, inputs, dynamic_shapes=shapes)
    with atomic_write(path) as temporary:
        with temporary.open("wb") as new:
            torch.export.save(program, new, extra_files=dict(properties))
        with temporary.open("rb") as written:
            module = torch.export.load(written).module()

        def drawn(inputs: Inputs) -> Tensor:
            with torch.no_grad():
                return module(*inputs)  # type: ignore[no-any-return]

        return largest_difference(network, resolution, alpha, drawn)
