"""Weights of another program as a generator of this one.

All of them scale their weights at run time by a gain / sqrt(fan-in); where the gain differs from ours, the weight takes
it.  C feature maps, Z latent size, I and O input and output feature maps.
"""

from collections.abc import Mapping
from math import sqrt
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pggan.checkpoints.generator_file import LoadedGenerator
from pggan.core.architecture import Architecture, Resampling, Stem
from pggan.interop.importers.restricted_pickle import Tensor
from pggan.networks.networks import Generator

Arrays = dict[str, npt.NDArray[Any]]
HE_TO_STEM = 4.0  # our stem has a quarter of He's gain
HE_TO_RGB = sqrt(2.0)  # our layers to RGB have gain 1


def tensors_of(state: Mapping[str, Any]) -> Arrays:
    """The tensors of a state dict, without the name 'module' that wrappers add."""
    arrays = {}
    for name, tensor in state.items():
        if isinstance(tensor, Tensor):
            arrays[".".join(part for part in name.split(".") if part != "module")] = tensor.value()
    return arrays


def widths_to_architecture(widths: list[int], *, channels: int, latent_size: int, stem: Stem) -> Architecture:
    """The architecture with these feature maps at 4x4, 8x8 …; raises ValueError when no formula gives them."""
    for stage, width in enumerate(widths, 1):
        architecture = Architecture(
            resolution=2 ** (len(widths) + 1),
            channels=channels,
            num_classes=0,
            latent_size=latent_size,
            fmap_base=width << stage,
            fmap_decay=1.0,
            fmap_max=max(widths),
            stddev_group=4,  # of a discriminator
            resampling=Resampling.fused,  # in a generator, both kinds compute the same
            stem=stem,
        )
        if [architecture.width(resolution) for resolution in architecture.resolutions] == widths:
            return architecture
    raise ValueError(f"its layers have {widths} feature maps, which halve in no regular way")


def assemble(architecture: Architecture, arrays: Arrays, resolution: int, alpha: float) -> LoadedGenerator:
    """The generator with `arrays` under our names; raises ValueError unless they fit and are finite."""
    network = Generator(architecture)
    state = {}
    for name, wanted in network.state_dict().items():
        if name not in arrays:
            raise ValueError(f"it has no {name}")
        tensor = torch.from_numpy(np.array(arrays[name], dtype=np.float32, order="C"))
        if tensor.shape != wanted.shape:
            raise ValueError(f"{name} has the shape {tuple(tensor.shape)} where {tuple(wanted.shape)} is expected")
        if not bool(torch.isfinite(tensor).all()):
            raise ValueError(f"{name} has a number that is not finite")
        state[name] = tensor
    network.load_state_dict(state)
    return LoadedGenerator(network.requires_grad_(False), resolution, alpha, 0)
