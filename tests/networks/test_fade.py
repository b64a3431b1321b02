"""Fading new layers in: the blend itself, and generator and discriminator at both ends of it and in between."""

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pggan.networks.activation import pixel_norm
from pggan.networks.fade import Blend, blur, downsample, fade, upsample
from pggan.networks.networks import Discriminator, Generator
from tests.networks.naive import LEVELS, TALL, assert_rounded_once, naive_down, naive_up, normal, ready


def test_resampling_is_by_nearest_neighbour_and_by_the_mean_of_boxes():
    image = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]])
    assert upsample(image).tolist() == [[[[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 6, 6], [3, 3, 6, 6]]]]
    assert downsample(image).tolist() == [[[[3.0]]]]
    assert torch.equal(downsample(upsample(image)), image)


def test_blurred_nearest_upsampling_is_bilinear_inside_and_keeps_what_is_flat():
    image = normal(2, 3, 8, 8)
    inside = np.s_[..., 1:-1, 1:-1]
    found, bilinear = blur(upsample(image)), F.interpolate(image, scale_factor=2, mode="bilinear")
    torch.testing.assert_close(found[inside], bilinear[inside], rtol=0, atol=9 * 2**-24 * image.abs().max().item())
    flat = torch.full((1, 3, 8, 8), 0.7)
    torch.testing.assert_close(blur(flat), flat, rtol=10 * 2**-24, atol=0)  # at the borders, too


def test_a_fade_is_exact_at_both_ends_for_any_numbers():
    old, new = normal(1000) * 1e4, normal(1000, seed=1) * 1e-4
    assert torch.equal(fade(old, new, 0.0), old)
    assert torch.equal(fade(old, new, 1.0), new)
    assert fade(torch.tensor([2.0]), torch.tensor([10.0]), 0.25).item() == 4.0


@pytest.mark.parametrize("alpha", [0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_fade_in_half_precision_rounds_its_result_only(dtype, alpha):
    old, new = (3 * normal(1000)).to(dtype), normal(1000, seed=1).to(dtype)
    exact = (1 - alpha) * old.double() + alpha * new.double()
    for given in (alpha, torch.tensor(alpha)):  # a tensor inside CUDA graphs and compiled steps
        found = fade(old, new, given)
        assert found.dtype == dtype
        assert_rounded_once(found, exact, terms=old.double().abs() + new.double().abs())


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_fading_reals_blend_in_their_detail_like_the_generator(alpha):
    images = normal(2, 3, 8, 8)
    found = fade(upsample(downsample(images)), images, alpha)
    exact = images.double().numpy()
    np.testing.assert_allclose(found, alpha * exact + (1 - alpha) * naive_up(naive_down(exact)), atol=1e-6)
    even = torch.tensor([-1.0, -0.6, 1.0])[None, :, None, None].expand(2, -1, 8, 8)
    assert torch.equal(fade(upsample(downsample(even)), even, alpha), even)


# ---- networks -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tall_g():
    return ready(Generator, TALL)


@pytest.fixture(scope="module")
def tall_d():
    return ready(Discriminator, TALL)


@pytest.fixture(scope="module")
def image_at(tall_g):
    """The image of one latent at a level, fully grown; each made once."""

    @cache
    def image(level):
        with torch.no_grad():
            return tall_g(normal(1, 7), None, level, 1.0)

    return image


def plain_generator(g, latents, level):
    """The generator without any fade, layer after layer."""
    latents = pixel_norm(latents)
    x = g.stem(latents)
    for resolution in LEVELS[1 : LEVELS.index(level) + 1]:
        x = g.blocks[str(resolution)](x, latents)
    return g.to_rgb[str(level)](x)


def plain_discriminator(d, images, level):
    x = F.leaky_relu(d.from_rgb[str(level)](images), 0.2)
    for resolution in LEVELS[LEVELS.index(level) : 0 : -1]:
        x = d.blocks[str(resolution)](x)
    return d.head(x, sub_batches=1)[:, 0]


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_fade_of_g_starts_as_the_upsampled_previous_level(tall_g, image_at, level):
    with torch.no_grad():
        found = tall_g(normal(1, 7), None, level, 0.0)
    assert torch.equal(found, image_at(level // 2).repeat_interleave(2, 2).repeat_interleave(2, 3))


@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_fade_of_d_starts_as_the_previous_level_of_the_pooled_image(tall_d, level):
    images = normal(2, 3, level, level)
    with torch.no_grad():
        expected = tall_d(F.avg_pool2d(images, 2), level // 2)[0]
        assert torch.equal(tall_d(images, level, 0.0)[0], expected)


@pytest.mark.parametrize("level", LEVELS)
def test_a_fade_of_g_ends_as_the_generator_without_one(tall_g, image_at, level):
    with torch.no_grad():
        assert torch.equal(image_at(level), plain_generator(tall_g, normal(1, 7), level))


@pytest.mark.parametrize("level", LEVELS)
def test_a_fade_of_d_ends_as_the_discriminator_without_one(tall_d, level):
    images = normal(2, 3, level, level)
    with torch.no_grad():
        assert torch.equal(tall_d(images, level, 1.0)[0], plain_discriminator(tall_d, images, level))


@pytest.mark.parametrize("level", [4, 8, 32])
def test_networks_are_fully_faded_in_unless_told(tall_g, tall_d, image_at, level):
    with torch.no_grad():
        images = tall_g(normal(1, 7), None, level)
        assert torch.equal(images, image_at(level))
        assert torch.equal(tall_d(images, level)[0], tall_d(images, level, 1.0)[0])


@pytest.mark.parametrize(
    ("level", "alpha"),
    [*((level, alpha) for level in (8, 16, 32, 64) for alpha in (1e-3, 0.5, 0.9)), *((r, 0.25) for r in LEVELS[1:])],
)
def test_a_fading_image_is_the_blend_of_both_levels(tall_g, image_at, level, alpha):
    with torch.no_grad():
        found = tall_g(normal(1, 7), None, level, alpha).numpy()
    old, new = naive_up(image_at(level // 2).double().numpy()), image_at(level).double().numpy()
    np.testing.assert_allclose(found, alpha * new + (1 - alpha) * old, atol=2e-6)


@pytest.mark.parametrize("level", [8, 16, 32])
def test_a_fading_score_is_that_of_blended_features(tall_d, level):
    images, alpha = normal(2, 3, level, level), 0.3
    with torch.no_grad():
        new = tall_d.blocks[str(level)](F.leaky_relu(tall_d.from_rgb[str(level)](images), 0.2))
        old = F.leaky_relu(tall_d.from_rgb[str(level // 2)](F.avg_pool2d(images, 2)), 0.2)
        x = 0.7 * old + 0.3 * new
        for resolution in LEVELS[LEVELS.index(level) - 1 : 0 : -1]:
            x = tall_d.blocks[str(resolution)](x)
        expected = tall_d.head(x, sub_batches=1)[:, 0]
        torch.testing.assert_close(tall_d(images, level, alpha)[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("level", [8, 16, 64])
def test_layers_of_the_previous_level_get_no_gradient_after_the_fade(tall_g, tall_d, level):
    latents, images = normal(2, 7), normal(2, 3, level, level)
    for network, call, layers in (
        (tall_g, lambda alpha: tall_g(latents, None, level, alpha), tall_g.to_rgb),
        (tall_d, lambda alpha: tall_d(images, level, alpha)[0], tall_d.from_rgb),
    ):
        network.zero_grad(set_to_none=True)
        call(1.0).square().sum().backward()
        with_gradient = {name for name, p in layers.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        assert with_gradient == {f"{level}.weight", f"{level}.bias"}
        network.zero_grad(set_to_none=True)
        call(0.5).square().sum().backward()
        with_gradient = {name for name, p in layers.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
        assert with_gradient == {f"{r}.{kind}" for r in (level, level // 2) for kind in ("weight", "bias")}
        network.zero_grad(set_to_none=True)


def test_layers_above_the_level_in_use_get_no_gradient(tall_g, tall_d):
    tall_g(normal(2, 7), None, 8, 0.5).square().sum().backward()
    tall_d(normal(2, 3, 8, 8), 8, 0.5)[0].sum().backward()
    for network in (tall_g, tall_d):
        for name, parameter in network.named_parameters():
            levels = [int(part) for part in name.split(".") if part.isdecimal()]
            assert (parameter.grad is None) == any(level > 8 for level in levels), name
        network.zero_grad(set_to_none=True)


def test_a_fade_changes_continuously(tall_g):
    latents = normal(1, 7)
    with torch.no_grad():
        images = [tall_g(latents, None, 16, alpha) for alpha in (0, 1e-4, 0.5 - 1e-4, 0.5, 0.5 + 1e-4, 1 - 1e-4, 1)]
    for first, second in ((0, 1), (2, 3), (3, 4), (5, 6)):
        assert (images[first] - images[second]).abs().max() < 2e-3


@pytest.mark.parametrize("alpha", [0.3, 0.9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_without_kernels_a_blend_and_its_gradients_in_half_precision_are_rounded_once(dtype, alpha):
    """As CUDA calculates them where Triton does not work."""
    weight, a = torch.tensor(alpha), torch.tensor(alpha).double()
    old, new = (3 * normal(1000)).to(dtype).requires_grad_(), normal(1000, seed=1).to(dtype).requires_grad_()
    gradient = normal(1000, seed=2).to(dtype)
    found = Blend.apply(old, new, weight)
    of_old, of_new = torch.autograd.grad(found, (old, new), gradient)
    wide = [tensor.detach().double() for tensor in (old, new, gradient)]
    assert found.dtype == of_old.dtype == of_new.dtype == dtype
    assert_rounded_once(found.detach(), (1 - a) * wide[0] + a * wide[1], terms=wide[0].abs() + wide[1].abs())
    assert_rounded_once(of_old, (1 - a) * wide[2], terms=wide[2].abs())
    assert_rounded_once(of_new, a * wide[2], terms=wide[2].abs())
