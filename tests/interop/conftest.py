"""A generator with weights that are all different from 0, as a file."""

from pathlib import Path

import pytest

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.core.architecture import Resampling
from pggan.networks.networks import Generator
from tests.definitions import ready, variant


@pytest.fixture(scope="session")
def make_network():
    """Networks of a few thousand weights, biases included at random."""

    def make(
        num_classes: int = 0, resampling: Resampling = Resampling.fused, channels: int = 3, **layers: bool | int
    ) -> Generator:
        small = variant(resolution=16, latent_size=6, fmap_base=64, fmap_max=8, **layers)
        architecture = variant(small, num_classes=num_classes, resampling=resampling, channels=channels)
        return ready(Generator, architecture).requires_grad_(False)

    return make


@pytest.fixture(scope="session")
def generator_file(tmp_path_factory, make_network) -> Path:
    """A generator that was saved while 16x16 faded in."""
    path = tmp_path_factory.mktemp("generator") / "generator.safetensors"
    save_generator(LoadedGenerator(make_network(), 16, 0.25, 4000), path)
    return path
