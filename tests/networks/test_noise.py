"""Noise of a generator: a function of the latent that looks random."""

import pytest
import torch

from pggan.networks.activation import pixel_norm
from pggan.networks.networks import Generator, initialize
from pggan.networks.noise import INPUTS, LatentNoise
from tests.definitions import variant

COUNT, SIDE, SIZE = 4096, 8, 64


def latents(count=COUNT, size=SIZE):
    return pixel_norm(torch.randn(count, size, generator=torch.Generator().manual_seed(0)))


@pytest.fixture(scope="module")
def noise():
    return LatentNoise(3, SIDE, SIZE, 0).noise(latents())[:, 0]  # [N, R, R]


def test_among_latents_it_has_mean_0_and_variance_1_in_every_pixel(noise):
    """Within six standard deviations of the mean of as many: 1 and, of squares of sums of four cosines, sqrt(1.625)."""
    assert noise.mean(0).abs().max() < 6 / COUNT**0.5
    assert (noise.square().mean(0) - 1).abs().max() < 6 * (1.625 / COUNT) ** 0.5


def test_pixels_and_layers_are_uncorrelated(noise):
    """Up to exp(-9) for pixels of a row or column, and six standard deviations, the product of two variances of 1."""
    pixels = torch.cat([noise, LatentNoise(3, SIDE, SIZE, 1).noise(latents())[:, 0]]).view(2, COUNT, -1)
    within = pixels[0].T @ pixels[0] / COUNT
    within.fill_diagonal_(0)
    bound = 6 * (1.5 / COUNT) ** 0.5
    assert within.abs().max() < bound
    assert (pixels[0].T @ pixels[1] / COUNT).abs().max() < bound


def test_it_is_the_sum_of_waves_whose_phases_the_latent_decides_on():
    layer, given = LatentNoise(3, SIDE, SIZE, 0).double(), latents(2).double()
    found = layer.noise(given)[1, 0, 3, 5]
    p, q = (
        (given[1, :INPUTS, None, None] * table.view(INPUTS, 4, SIDE)).sum(0) for table in (layer.rows, layer.columns)
    )
    torch.testing.assert_close(found, torch.cos(p[:, 3] + q[:, 5]).sum() * 0.5**0.5, rtol=0, atol=1e-12)


def test_neighbouring_latents_have_nearly_the_same_noise():
    """A phase moves by at most SPREAD times the way, in units of standard deviations of a latent's numbers."""
    layer = LatentNoise(3, SIDE, SIZE, 0)
    here = latents(256)
    there = pixel_norm(here + 0.01 * latents(256).roll(1, 0))
    assert (
        layer.noise(here) - layer.noise(there)
    ).square().mean().sqrt() < 0.06  # 0.01 * 3 * sqrt(2), and a third more
    assert (layer.noise(here) - layer.noise(here.roll(1, 0))).square().mean().sqrt() > 1.3  # sqrt(2): unrelated


def test_a_latent_has_its_noise_whatever_else_is_in_the_batch_and_in_every_process():
    layer, given = LatentNoise(3, SIDE, SIZE, 0), latents(8)
    torch.testing.assert_close(layer.noise(given)[5:6], layer.noise(given[5:6]), rtol=0, atol=1e-5)
    assert layer.rows[0, :2].tolist() == pytest.approx([-0.27225619554519653, 1.5073591470718384], abs=1e-6)


def test_strengths_begin_at_0_and_are_learned_without_a_gradient_of_the_latent():
    g = Generator(variant(resolution=8, fmap_base=64, fmap_max=8, latent_size=8, noise=True))
    initialize(g, 0, "g")
    plain = Generator(variant(resolution=8, fmap_base=64, fmap_max=8, latent_size=8))
    initialize(plain, 0, "g")
    given = torch.randn(4, 8)
    assert torch.equal(g(given, None, 8), plain(given, None, 8))
    assert {name for name in g.state_dict() if name not in plain.state_dict()} == {
        "blocks.8.noises.0.strength",
        "blocks.8.noises.1.strength",
    }
    layer = g.blocks["8"].noises[0]
    features = torch.randn(4, 8, 8, 8)
    given = pixel_norm(given).requires_grad_()
    layer(features, given).square().sum().backward()
    wanted = (2 * features * layer.noise(given.detach()) / 4).sum((0, 2, 3))
    torch.testing.assert_close(layer.strength.grad, wanted, rtol=1e-5, atol=1e-4)
    assert given.grad is None


def test_tables_are_where_the_network_is_made():
    with torch.device("meta"):
        layer = LatentNoise(3, SIDE, SIZE, 0)
    assert {tensor.device.type for tensor in (layer.rows, layer.columns, layer.strength)} == {"meta"}
