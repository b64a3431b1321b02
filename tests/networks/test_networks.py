"""Generator and discriminator, against the official tables and against the naive networks."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pggan.core.architecture import Resampling, Stem
from pggan.networks.layers import ComputeOptions, use_options
from pggan.networks.networks import Discriminator, Generator, count_parameters, initialize
from tests.definitions import ready, variant
from tests.networks.naive import TINY, Naive, naive_activation, naive_pixel_norm, normal


def on_meta(network, architecture):
    with torch.device("meta"):
        return network(architecture)


# ---- parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "g", "d"),
    [
        ({"resolution": 4}, 6_556_163, 6_561_793),
        ({"resolution": 1024}, 23_079_115, 23_087_249),
        ({"resolution": 1024, "resampling": Resampling.unfused}, 23_079_115, 23_087_249),
        ({"resolution": 32, "fmap_base": 4096, "fmap_max": 128, "latent_size": 128}, 1_296_908, 1_298_689),
        ({"resolution": 32, "num_classes": 10}, 20_801_548, 20_731_915),
        ({"channels": 1}, 23_079_115 - 2 * (2544 + 9), 23_087_249 - 2 * 2544),
    ],
)
def test_parameter_counts_are_the_official_ones(changes, g, d):
    architecture = variant(**changes)
    assert count_parameters(on_meta(Generator, architecture)) == g
    assert count_parameters(on_meta(Discriminator, architecture)) == d


def test_weights_start_standard_normal_biases_at_0_and_depend_on_seed_network_and_layer_alone():
    for kind in (Generator, Discriminator):
        made = [kind(variant(resolution=r, fmap_max=64, latent_size=64)) for r in (16, 32, 16, 16)]
        for network, (seed, name) in zip(made, [(0, "g"), (0, "g"), (1, "g"), (0, "d")], strict=True):
            initialize(network, seed, name)
        first, larger, *others = (dict(network.named_parameters()) for network in made)
        assert all(torch.equal(weight, larger[name]) for name, weight in first.items())
        assert not any(first[name].any() for name in first if name.endswith("bias"))
        weights = {name: weight for name, weight in first.items() if name.endswith("weight")}
        for name, weight in weights.items():
            assert not any(torch.equal(weight, other[name]) for other in others)
            error = 1 / math.sqrt(weight.numel())
            assert abs(weight.mean()) < 5 * error
            assert abs(weight.std() - 1) < 5 * error
        assert len({tuple(weight.flatten()[:10].tolist()) for weight in weights.values()}) == len(weights)


# ---- definition -----------------------------------------------------------------------------------------

LABELS = torch.eye(3, dtype=torch.float64)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize("layers", [{}, {"blur": True}, {"blur": True, "bilateral": 2, "num_classes": 3}], ids=str)
@pytest.mark.parametrize("resampling", Resampling)
def test_the_generator_is_the_naive_one_at_every_level_and_alpha(resampling, layers, reference):
    g = ready(Generator, variant(TINY, resampling=resampling, **layers)).double()
    latents, labels = normal(3, 7, dtype=torch.float64), LABELS if "num_classes" in layers else None
    for level in (4, 8, 16):
        g.train(level != 8)  # a network for drawing filters twice as often
        for alpha in (0.0, 0.3, 0.8, 1.0):
            with use_options(g, ComputeOptions(reference=reference)):
                found = g(latents, labels, level, alpha).detach().numpy()
            expected = Naive(g).generate(latents.numpy(), labels, level, alpha)
            np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("reference", [False, True])
@pytest.mark.parametrize(("num_classes", "residual"), [(0, True), (0, False), (3, False)])
@pytest.mark.parametrize("resampling", Resampling)
def test_the_discriminator_is_the_naive_one_at_every_level_and_alpha(resampling, num_classes, residual, reference):
    """Of two batches that are judged as one, each has groups of its own."""
    d = ready(Discriminator, variant(TINY, resampling=resampling, num_classes=num_classes, residual=residual)).double()
    for level in (4, 8, 16):
        parts = [factor * normal(4, 3, level, level, seed=level, dtype=torch.float64) for factor in (1, 2)]
        for alpha in (0.0, 0.3, 0.8, 1.0):
            with use_options(d, ComputeOptions(reference=reference)):
                scores, logits = d(torch.cat(parts), level, alpha, sub_batches=2)
            expected = np.concatenate([Naive(d).scores(images.numpy(), level, alpha) for images in parts])
            assert (scores.shape, logits.shape) == ((8,), (8, num_classes))
            np.testing.assert_allclose(torch.cat([scores[:, None], logits], 1).detach().numpy(), expected, atol=2e-6)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("resampling", Resampling)
def test_networks_in_float32_and_half_precision_are_the_naive_ones_to_the_rounding_of_each_layer(resampling, dtype):
    # A rounding changes a number by a random share of at most u.  Each of 6 layers on the way, and of 2 at the ends of
    # the fade, rounds its kernel, its result and (G) the norm of it or (D) the blend or the mean: 8 * 3 in all, of
    # which equalised layers neither enlarge nor shrink the earlier ones.
    architecture = variant(TINY, resampling=resampling)
    g, d = ready(Generator, architecture), ready(Discriminator, architecture)
    latents, images = normal(16, 7), normal(16, 3, 16, 16, seed=1)
    options = ComputeOptions(dtype=dtype)
    with torch.no_grad(), use_options(g, options), use_options(d, options):
        drawn, (scores, _) = g(latents, None, 16, 0.4), d(images, 16, 0.4)
    bound = 2e-6 if dtype is None else math.sqrt(8 * 3) * torch.finfo(dtype).eps / 2
    for found, expected in (
        (drawn, Naive(g).generate(latents.double().numpy(), None, 16, 0.4)),
        (scores, Naive(d).scores(images.double().numpy(), 16, 0.4)[:, 0]),
    ):
        assert found.dtype == torch.float32
        assert np.linalg.norm(found.numpy() - expected) < bound * np.linalg.norm(expected)


@pytest.mark.parametrize("stem", [Stem.unit_bias, Stem.one_norm])
def test_stems_of_other_programs_have_a_bias_for_each_number_or_one_norm(stem):
    g, x = ready(Generator, variant(TINY, stem=stem)).double(), normal(3, 7, dtype=torch.float64)
    naive = Naive(g)
    weight, bias = naive.layer("stem.dense", math.sqrt(2) / 4)
    found = (naive_pixel_norm(x.numpy()) @ weight.T).reshape(3, -1, 4, 4)
    found = naive_activation(found + bias.reshape(-1, *((4, 4) if stem is Stem.unit_bias else (1, 1))))
    found = naive_pixel_norm(found) if stem is Stem.unit_bias else found
    found = naive_pixel_norm(naive_activation(naive.conv("stem.conv", found)))
    np.testing.assert_allclose(g.features(x, None).detach().numpy(), found, atol=1e-12)


# ---- growing --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", [8, 16, 128])
def test_a_fade_starts_as_the_level_below_and_ends_with_the_layers_of_its_own(level):
    tall = variant(TINY, resolution=256, fmap_base=1024, fmap_max=4)
    g, d, latents, images = ready(Generator, tall), ready(Discriminator, tall), normal(1, 7), normal(2, 3, level, level)
    with torch.no_grad():
        below = F.interpolate(g(latents, None, level // 2), scale_factor=2)
        assert torch.equal(g(latents, None, level, 0.0), below)
        assert torch.equal(d(images, level, 0.0)[0], d(F.avg_pool2d(images, 2), level // 2)[0])
        assert torch.equal(g(latents, None, level, 1.0), g(latents, None, level, torch.tensor(1.0)))
        assert g(latents, None, level).shape == (1, 3, level, level)
        assert d(images, level)[0].isfinite().all()
