"""Keys of the networks, of Adam and of the averaged generator."""

import pytest

from pggan.config import EmaConfig, ModelConfig
from pggan.core.architecture import Architecture, Resampling
from pggan.core.errors import UserError

SIZES = {"fmap_base": 100, "fmap_decay": 0.5, "fmap_max": 30, "stddev_group": 4, "resampling": Resampling.unfused}


def test_every_key_of_the_model_reaches_the_architecture():
    found = ModelConfig(latent_size=7, **SIZES).architecture(64, channels=1, labels=3)
    assert found == Architecture(resolution=64, channels=1, labels=3, latent_size=7, **SIZES)


@pytest.mark.parametrize(("base", "largest", "size"), [(8192, 512, 512), (256, 512, 256)])
def test_latents_are_as_wide_as_the_widest_layer_unless_told(base, largest, size):
    model = ModelConfig(latent_size=None, **{**SIZES, "fmap_base": base, "fmap_max": largest})
    assert model.architecture(4, 3, 0).latent_size == size


def test_a_batch_is_one_group_or_whole_groups():
    model = ModelConfig(latent_size=None, **SIZES)
    for batch in (1, 2, 3, 4, 8, 16):
        model.require_whole_groups("batch", batch)
    for batch, advice in {6: "4 or 8", 5: "4 or 8", 9: "8 or 12"}.items():
        with pytest.raises(UserError, match=f"Take a batch of {advice}"):
            model.require_whole_groups("batch", batch)


@pytest.mark.parametrize("key", ["fmap_base", "fmap_max", "stddev_group"])
def test_sizes_beyond_any_network_are_refused(key):
    with pytest.raises(UserError, match=rf"model\.{key}=.*\n.*at most"):
        ModelConfig(latent_size=None, **{**SIZES, key: 2**30})


def test_the_average_has_a_half_life_or_a_decay_per_update():
    EmaConfig(half_life_images=1000, rampup=None, decay_per_update=None)
    EmaConfig(half_life_images=None, rampup=None, decay_per_update=0.0)
    for wrong in (
        {"half_life_images": None, "decay_per_update": None},
        {"half_life_images": 1, "decay_per_update": 0.9},
    ):
        with pytest.raises(UserError, match="exactly one"):
            EmaConfig(rampup=None, **wrong)
    with pytest.raises(UserError, match="below 1"):
        EmaConfig(half_life_images=None, rampup=None, decay_per_update=1.0)
