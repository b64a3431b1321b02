"""How different two images look."""

import torch

from pggan.networks.fade import upsample
from pggan.sampling.perceptual import laplacian_distance, laplacian_pyramid


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
