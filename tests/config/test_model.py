"""Keys of the networks, of Adam and of the averaged generator."""

from hashlib import sha256

import pytest
from safetensors.torch import save_file

from pggan.config import EmaConfig, ModelConfig
from pggan.core.architecture import Architecture, Resampling
from pggan.core.errors import UserError

SIZES = {"fmap_base": 100, "fmap_decay": 0.5, "fmap_max": 30, "stddev_group": 4, "resampling": Resampling.unfused}


def test_every_key_of_the_model_reaches_the_architecture():
    found = ModelConfig(latent_size=7, **SIZES).architecture(64, channels=1, num_classes=3)
    assert found == Architecture(resolution=64, channels=1, num_classes=3, latent_size=7, **SIZES)


@pytest.mark.parametrize(("base", "largest", "size"), [(8192, 512, 512), (256, 512, 256)])
def test_latents_are_as_wide_as_the_widest_layer_unless_told(base, largest, size):
    model = ModelConfig(latent_size=None, **{**SIZES, "fmap_base": base, "fmap_max": largest})
    assert model.architecture(4, 3, 0).latent_size == size


def test_a_batch_is_one_group_or_whole_groups():
    model = ModelConfig(latent_size=None, **SIZES)
    for batch in (1, 2, 3, 4, 8, 16):
        model.require_whole_groups("batch", batch)
    for batch, advice in {6: "4 or 8", 5: "4 or 8", 9: "8 or 12"}.items():
        with pytest.raises(UserError, match=f"Use a batch of {advice}"):
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


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"features": "effcientnet-lite0"}, "efficientnet-lite0"),
        ({"features_weights": "w.pth"}, "model.features=torchvision:NAME"),
        ({"features_from": 4}, "power of two from 8"),
        ({"features_from": 24}, "power of two from 8"),
    ],
)
def test_features_that_can_not_be_are_refused(changes, hint):
    with pytest.raises(UserError) as caught:
        ModelConfig(latent_size=None, **SIZES, **changes)
    assert hint in str(caught.value)


@pytest.mark.xdist_group("torchvision")  # which takes seconds to import
def test_features_are_part_of_the_architecture_with_the_checksum_of_their_weights(tmp_path):
    from torchvision.models import squeezenet1_1

    path = tmp_path / "weights.safetensors"
    model = ModelConfig(latent_size=7, **SIZES, features="torchvision:squeezenet1_1", features_weights=str(path))
    with pytest.raises(UserError, match="no weights at"):
        model.architecture(64, channels=3, num_classes=0)
    save_file(squeezenet1_1().state_dict(), path)
    found = model.architecture(64, channels=3, num_classes=0).features
    assert found == f"torchvision:squeezenet1_1@{sha256(path.read_bytes()).hexdigest()[:16]}"
    with pytest.raises(UserError, match="1 or 3 channels"):
        model.architecture(64, channels=4, num_classes=0)
