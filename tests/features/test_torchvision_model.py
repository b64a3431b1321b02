"""Networks of torchvision: the pixels that their published weights expect."""

from types import SimpleNamespace

import pytest
import torch

from pggan.networks.features import backbone
from pggan.networks.features.torchvision_model import MEAN, STD, normalization_of

pytestmark = pytest.mark.xdist_group("torchvision")  # which takes seconds to import


def test_pixels_are_normalised_as_the_default_weights_expect_them():
    assert normalization_of("resnet18") == (MEAN, STD)
    assert normalization_of("efficientnet_v2_l") == ([127.5] * 3, [127.5] * 3)
    assert normalization_of("efficientnet_v2_m") == (MEAN, STD)


def test_every_model_has_a_normalization():
    from torchvision import models

    for name in models.list_models(module=models):
        mean, std = normalization_of(name)
        assert (len(mean), len(std)) == (3, 3), name
        assert min(std) > 0, name


def test_a_model_without_weights_has_that_of_imagenet(monkeypatch):
    from torchvision import models

    monkeypatch.setattr(models, "get_model_weights", lambda name: SimpleNamespace())
    assert normalization_of("resnet18") == (MEAN, STD)


@pytest.mark.parametrize("name", ["inception_v3", "googlenet"])
def test_two_networks_see_what_torchvision_transforms_their_inputs_into(name):
    from torchvision import models
    from torchvision.transforms.functional import normalize

    with torch.device("meta"):
        network = models.get_model(name, weights=None, init_weights=False, transform_input=True)
    images, preset = torch.arange(256.0).expand(1, 3, 1, 256), models.get_model_weights(name).DEFAULT.transforms()
    expected = network._transform_input(normalize(images / 255, preset.mean, preset.std))
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in normalization_of(name))
    # Values up to 2.7, each rounded a few times to 2^-24.
    torch.testing.assert_close((images - mean) / std, expected, rtol=0, atol=2**-20)


def test_the_features_of_d_have_the_same_normalization():
    from torchvision.models import resnet18

    found = backbone._torchvision(resnet18(), "torchvision:efficientnet_v2_l")  # that one is large
    assert found.mean.flatten().tolist() == found.std.flatten().tolist() == [127.5] * 3
