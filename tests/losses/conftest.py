"""A small discriminator."""

import pytest

from pggan.networks.networks import Discriminator
from tests.definitions import variant
from tests.networks.naive import ready


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "residual"])
def critic(request: pytest.FixtureRequest) -> Discriminator:
    """For images of 8x8 in two channels, with groups of two and biases that are not 0."""
    sizes = {"resolution": 8, "channels": 2, "latent_size": 4, "fmap_base": 8, "fmap_max": 4, "stddev_group": 2}
    return ready(Discriminator, variant(**sizes, residual=request.param))
