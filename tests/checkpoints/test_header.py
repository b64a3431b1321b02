"""Architectures as headers describe them."""

import pytest

from pggan.checkpoints.header import architecture_from, architecture_to_plain
from pggan.core.architecture import LIMITS
from tests.definitions import variant


@pytest.mark.parametrize("name", LIMITS)
def test_sizes_are_taken_up_to_the_largest_and_no_further(name):
    plain = architecture_to_plain(variant(resolution=8, latent_size=8, fmap_base=64, fmap_max=8))
    assert architecture_to_plain(architecture_from({**plain, name: LIMITS[name]})) == {**plain, name: LIMITS[name]}
    for wrong in (LIMITS[name] + 1, -1, 1.5, "8", True):
        with pytest.raises(ValueError, match=name):
            architecture_from({**plain, name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"), [("resolution", 12), ("resolution", 2), ("fmap_decay", "1"), ("fmap_decay", float("nan"))]
)
def test_other_values_that_no_network_has_are_refused(name, wrong):
    plain = architecture_to_plain(variant(resolution=8, latent_size=8, fmap_base=64, fmap_max=8))
    with pytest.raises(ValueError, match=name):
        architecture_from({**plain, name: wrong})


def test_features_are_in_a_header_where_there_are_some():
    architecture = variant(resolution=32, features="torchvision:resnet18@0123456789abcdef", features_from=8)
    plain = architecture_to_plain(architecture)
    assert architecture_from(plain) == architecture
    assert "features" not in architecture_to_plain(variant(resolution=32))
    for name, wrong in (("features", 3), ("features", "../x@00"), ("features_from", 4), ("features_from", "8")):
        with pytest.raises(ValueError, match="features"):
            architecture_from({**plain, name: wrong})
