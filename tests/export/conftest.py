"""A generator with weights that are all different from 0, as a file."""

from pathlib import Path

import pytest
import torch

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.core.architecture import Architecture, Resampling
from pggan.networks.networks import Generator, initialize


@pytest.fixture(scope="session")
def make_network():
    """Networks of a few thousand weights, biases included at random."""

    def make(labels: int = 0, resampling: Resampling = Resampling.fused, channels: int = 3) -> Generator:
        widths = {"fmap_base": 64, "fmap_decay": 1.0, "fmap_max": 8}
        architecture = Architecture(
            resolution=16,
            channels=channels,
            labels=labels,
            latent_size=6,
            stddev_group=4,
            resampling=resampling,
            **widths,
        )
        network = Generator(architecture)
        initialize(network, 0, "generator")
        random = torch.Generator().manual_seed(1)
        for name, weight in network.named_parameters():
            if name.endswith("bias"):
                weight.data.normal_(generator=random)
        return network.requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def generator_file(tmp_path_factory, make_network) -> Path:
    """A generator that was saved while 16x16 faded in."""
    path = tmp_path_factory.mktemp("generator") / "generator.safetensors"
    save_generator(LoadedGenerator(make_network(), 16, 0.25, 4000), path)
    return path
