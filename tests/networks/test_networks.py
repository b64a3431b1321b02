"""Generator and discriminator, against the official layer tables and against the naive networks."""

import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from pggan.core.architecture import Resampling
from pggan.networks.networks import (
    Discriminator,
    DiscriminatorBlock,
    Generator,
    count_parameters,
    downsample,
    initialize,
    use_options,
)
from pggan.networks.numerics import ComputeOptions
from tests.definitions import PAPER, variant
from tests.networks.naive import LEVELS, TALL, TINY, Naive, naive_activation, naive_conv, naive_down, normal, ready


def on_meta(network, architecture):
    with torch.device("meta"):
        return network(architecture)


# ---- parameters ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resampling", Resampling)
@pytest.mark.parametrize(
    ("resolution", "g", "d"),
    [
        (4, 6_556_163, 6_561_793),
        (32, 20_719_628, 20_726_785),
        (64, 22_490_383, 22_498_049),
        (128, 22_933_394, 22_941_313),
        (256, 23_044_309, 23_052_353),
        (512, 23_072_120, 23_080_225),
        (1024, 23_079_115, 23_087_249),
    ],
)
def test_parameter_counts_are_the_official_ones_at_every_final_resolution(resolution, g, d, resampling):
    architecture = variant(resolution=resolution, resampling=resampling)
    assert count_parameters(on_meta(Generator, architecture)) == g
    assert count_parameters(on_meta(Discriminator, architecture)) == d


@pytest.mark.parametrize(
    ("changes", "g", "d"),
    [
        ({"resolution": 128, "fmap_base": 2048}, 13_629_810, 13_636_897),
        ({"resolution": 32, "fmap_base": 4096, "fmap_max": 128, "latent_size": 128}, 1_296_908, 1_298_689),
        ({"resolution": 32, "num_classes": 10}, 20_801_548, 20_731_915),
    ],
    ids=["ablation", "cifar", "labels"],
)
def test_parameter_counts_of_other_configurations_are_the_official_ones(changes, g, d):
    architecture = variant(**changes)
    assert count_parameters(on_meta(Generator, architecture)) == g
    assert count_parameters(on_meta(Discriminator, architecture)) == d


def test_with_the_final_rgb_layers_only_the_counts_are_those_of_table_2():
    for network, layers, expected in ((Generator, "to_rgb", 23_071_507), (Discriminator, "from_rgb", 23_077_137)):
        made = on_meta(network, PAPER)
        earlier = sum(count_parameters(layer) for r, layer in getattr(made, layers).items() if r != "1024")
        assert count_parameters(made) - earlier == expected


@pytest.mark.parametrize("channels", [1, 3, 5])
def test_image_channels_change_the_rgb_layers_only(channels):
    architecture = variant(channels=channels)
    widths = 4 * 512 + 256 + 128 + 64 + 32 + 16
    g, d = on_meta(Generator, architecture), on_meta(Discriminator, architecture)
    assert count_parameters(g) == 23_079_115 + (channels - 3) * (widths + 9)  # weight and bias of nine layers
    assert count_parameters(d) == 23_087_249 + (channels - 3) * widths


# ---- layer tables: name, (kernel, inputs, outputs), parameters -------------------------------------------

G_LAYERS = [
    ("stem.dense", (0, 512, 8192), 4_194_816),
    ("stem.conv", (3, 512, 512), 2_359_808),
    ("blocks.8.up_conv", (3, 512, 512), 2_359_808),
    ("blocks.8.conv", (3, 512, 512), 2_359_808),
    ("blocks.16.up_conv", (3, 512, 512), 2_359_808),
    ("blocks.16.conv", (3, 512, 512), 2_359_808),
    ("blocks.32.up_conv", (3, 512, 512), 2_359_808),
    ("blocks.32.conv", (3, 512, 512), 2_359_808),
    ("blocks.64.up_conv", (3, 512, 256), 1_179_904),
    ("blocks.64.conv", (3, 256, 256), 590_080),
    ("blocks.128.up_conv", (3, 256, 128), 295_040),
    ("blocks.128.conv", (3, 128, 128), 147_584),
    ("blocks.256.up_conv", (3, 128, 64), 73_792),
    ("blocks.256.conv", (3, 64, 64), 36_928),
    ("blocks.512.up_conv", (3, 64, 32), 18_464),
    ("blocks.512.conv", (3, 32, 32), 9_248),
    ("blocks.1024.up_conv", (3, 32, 16), 4_624),
    ("blocks.1024.conv", (3, 16, 16), 2_320),
    ("to_rgb.4", (1, 512, 3), 1_539),
    ("to_rgb.8", (1, 512, 3), 1_539),
    ("to_rgb.16", (1, 512, 3), 1_539),
    ("to_rgb.32", (1, 512, 3), 1_539),
    ("to_rgb.64", (1, 256, 3), 771),
    ("to_rgb.128", (1, 128, 3), 387),
    ("to_rgb.256", (1, 64, 3), 195),
    ("to_rgb.512", (1, 32, 3), 99),
    ("to_rgb.1024", (1, 16, 3), 51),
]

D_LAYERS = [
    ("from_rgb.1024", (1, 3, 16), 64),
    ("from_rgb.512", (1, 3, 32), 128),
    ("from_rgb.256", (1, 3, 64), 256),
    ("from_rgb.128", (1, 3, 128), 512),
    ("from_rgb.64", (1, 3, 256), 1_024),
    ("from_rgb.32", (1, 3, 512), 2_048),
    ("from_rgb.16", (1, 3, 512), 2_048),
    ("from_rgb.8", (1, 3, 512), 2_048),
    ("from_rgb.4", (1, 3, 512), 2_048),
    ("blocks.1024.conv", (3, 16, 16), 2_320),
    ("blocks.1024.down_conv", (3, 16, 32), 4_640),
    ("blocks.512.conv", (3, 32, 32), 9_248),
    ("blocks.512.down_conv", (3, 32, 64), 18_496),
    ("blocks.256.conv", (3, 64, 64), 36_928),
    ("blocks.256.down_conv", (3, 64, 128), 73_856),
    ("blocks.128.conv", (3, 128, 128), 147_584),
    ("blocks.128.down_conv", (3, 128, 256), 295_168),
    ("blocks.64.conv", (3, 256, 256), 590_080),
    ("blocks.64.down_conv", (3, 256, 512), 1_180_160),
    ("blocks.32.conv", (3, 512, 512), 2_359_808),
    ("blocks.32.down_conv", (3, 512, 512), 2_359_808),
    ("blocks.16.conv", (3, 512, 512), 2_359_808),
    ("blocks.16.down_conv", (3, 512, 512), 2_359_808),
    ("blocks.8.conv", (3, 512, 512), 2_359_808),
    ("blocks.8.down_conv", (3, 512, 512), 2_359_808),
    ("head.conv", (3, 513, 512), 2_364_416),
    ("head.dense", (0, 8192, 512), 4_194_816),
    ("head.score", (0, 512, 1), 513),
]


@pytest.mark.parametrize(("network", "table"), [(Generator, G_LAYERS), (Discriminator, D_LAYERS)], ids=["g", "d"])
def test_every_layer_has_the_shape_of_the_official_table(network, table):
    made = on_meta(network, PAPER)
    for name, (kernel, inputs, outputs), parameters in table:
        layer = made.get_submodule(name)
        assert tuple(layer.weight.shape) == (outputs, inputs, *((kernel, kernel) if kernel else ())), name
        assert count_parameters(layer) == parameters, name
    listed = {f"{name}.{kind}" for name, _, _ in table for kind in ("weight", "bias")}
    assert {name for name, _ in made.named_parameters()} == listed
    assert not list(made.buffers())


def test_the_bias_of_the_first_layer_is_one_number_per_feature_map():
    assert tuple(on_meta(Generator, PAPER).stem.dense.bias.shape) == (512,)


def test_labels_widen_the_first_layer_of_g_and_the_last_of_d():
    architecture = variant(num_classes=10)
    assert tuple(on_meta(Generator, architecture).stem.dense.weight.shape) == (8192, 522)
    assert tuple(on_meta(Discriminator, architecture).head.score.weight.shape) == (11, 512)


@pytest.mark.parametrize(
    ("network", "layers", "scale"),
    [
        (Generator, ["stem.dense"], 0.015625),
        (Generator, ["stem.conv", "blocks.8.up_conv", "blocks.32.conv", "blocks.64.up_conv"], 0.0208333),
        (Generator, ["blocks.64.conv", "blocks.128.up_conv"], 0.0294628),
        (Generator, ["blocks.128.conv", "blocks.256.up_conv"], 0.0416667),
        (Generator, ["blocks.256.conv", "blocks.512.up_conv"], 0.0589256),
        (Generator, ["blocks.512.conv", "blocks.1024.up_conv"], 0.0833333),
        (Generator, ["blocks.1024.conv"], 0.1178511),
        (Generator, ["to_rgb.4", "to_rgb.32"], 0.0441942),
        (Generator, ["to_rgb.1024"], 0.25),
        (Discriminator, [f"from_rgb.{r}" for r in LEVELS], 0.8164966),
        (Discriminator, ["blocks.1024.conv", "blocks.1024.down_conv"], 0.1178511),
        (Discriminator, ["blocks.64.conv", "blocks.64.down_conv"], 0.0294628),
        (Discriminator, ["blocks.32.conv", "blocks.8.down_conv"], 0.0208333),
        (Discriminator, ["head.conv"], 0.0208130),
        (Discriminator, ["head.dense"], 0.015625),
        (Discriminator, ["head.score"], 0.0441942),
    ],
)
def test_run_time_scales_are_the_official_constants(network, layers, scale):
    made = on_meta(network, PAPER)
    for name in layers:
        assert made.get_submodule(name).scale == pytest.approx(scale, abs=6e-8), name


def flops_of_convolutions(counter):
    """And of dense layers, without the products that make kernels."""
    counts = counter.get_flop_counts()["Global"]
    return sum(count for operation, count in counts.items() if operation is not torch.ops.aten.bmm)


def test_convolutions_of_the_1024_networks_cost_what_the_tables_say():
    expected = {
        Resampling.unfused: (42_672_848_896, 42_672_923_136),
        Resampling.fused: (27_489_468_416, 27_489_542_656),
    }
    for resampling, (g_cost, d_cost) in expected.items():
        architecture = variant(resampling=resampling)
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            Generator(architecture)(torch.empty(1, 512), None, 1024)
        assert flops_of_convolutions(counter) == 2 * g_cost
        with torch.device("meta"), FlopCounterMode(display=False) as counter:
            Discriminator(architecture)(torch.empty(1, 3, 1024, 1024), 1024)
        assert flops_of_convolutions(counter) == 2 * d_cost


# ---- initial weights -------------------------------------------------------------------------------------


def test_weights_start_standard_normal_and_biases_at_0():
    architecture = variant(resolution=16, fmap_max=128, latent_size=128)
    for network in (Generator, Discriminator):
        made = network(architecture)
        initialize(made, 0, "any")
        for name, parameter in made.named_parameters():
            values = parameter.detach().double()
            if name.endswith("bias"):
                assert torch.all(values == 0), name
                continue
            error = 1 / math.sqrt(values.numel())
            assert abs(values.mean()) < 5 * error, name
            assert abs(values.std() - 1) < 5 * error, name


def test_a_network_for_16_starts_with_the_weights_of_one_for_64():
    for network in (Generator, Discriminator):
        small, large = network(variant(TINY, resolution=16)), network(variant(TINY, resolution=64))
        initialize(small, 3, "g")
        initialize(large, 3, "g")
        of_large = dict(large.named_parameters())
        for name, parameter in small.named_parameters():
            assert torch.equal(parameter, of_large[name]), name
        assert len(of_large) > len(list(small.named_parameters()))


def test_growing_does_not_change_what_the_lower_levels_compute():
    # The paper's networks grow: a network for 16 is the lower part of one for 64.
    small_g, large_g = Generator(variant(TINY, resolution=16)), Generator(variant(TINY, resolution=64))
    small_d, large_d = Discriminator(variant(TINY, resolution=16)), Discriminator(variant(TINY, resolution=64))
    for network in (small_g, large_g, small_d, large_d):
        initialize(network, 0, "x")
    latents = normal(2, 7)
    for level in (4, 8, 16):
        images = small_g(latents, None, level)
        assert torch.equal(images, large_g(latents, None, level))
        assert torch.equal(small_d(images, level)[0], large_d(images, level)[0])


def test_initial_weights_depend_on_seed_network_and_layer():
    made = [Generator(TINY) for _ in range(4)]
    for network, (seed, name) in zip(made, [(0, "g"), (0, "g"), (1, "g"), (0, "d")], strict=True):
        initialize(network, seed, name)
    first = made[0].stem.conv.weight
    assert torch.equal(first, made[1].stem.conv.weight)
    assert not torch.equal(first, made[2].stem.conv.weight)
    assert not torch.equal(first, made[3].stem.conv.weight)
    beginnings = [tuple(p.flatten()[:10].tolist()) for n, p in made[0].named_parameters() if n.endswith("weight")]
    assert len(set(beginnings)) == len(beginnings) == 9  # stem 2, blocks 2 * 2, RGB 3


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("resampling", Resampling)
def test_a_pooling_layer_keeps_the_scale_of_an_even_image(resampling, residual):
    made = DiscriminatorBlock(200, 300, resampling, residual=residual)
    initialize(made, 0, "layer")
    even = normal(4, 200, 1, 1).expand(-1, -1, 12, 12)
    with torch.no_grad():
        out = made(even)[..., 2:-2, 2:-2]
    assert out.square().mean().item() == pytest.approx(1.04, rel=0.15)


def test_the_features_of_every_generator_block_have_unit_mean_square():
    g = Generator(variant(TINY, fmap_base=512, fmap_max=64, latent_size=64))
    initialize(g, 0, "g")
    latents = normal(2, 64)
    x = g.features(latents, None)
    for level in ("8", "16"):
        assert x.square().mean(1).allclose(torch.ones(()), atol=1e-4)
        x = g.blocks[level](x, latents)
    assert x.square().mean(1).allclose(torch.ones(()), atol=1e-4)


# ---- definition -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layers", [{"blur": True}, {"noise": True}, {"bilateral": 2}, {"blur": True, "noise": True, "bilateral": 1}]
)
@pytest.mark.parametrize("resampling", Resampling)
def test_the_generator_is_the_naive_one_at_every_level_and_alpha(resampling, layers):
    num_classes = 3 if len(layers) > 1 else 0
    g = ready(
        Generator,
        variant(TINY, resampling=resampling, num_classes=num_classes, **layers),
    ).double()
    latents = normal(3, 7, dtype=torch.float64)
    one_hot = torch.eye(3, dtype=torch.float64) if num_classes else None
    given = None if one_hot is None else one_hot.numpy()
    for level in (4, 8, 16):
        for alpha in (0.0, 0.3, 0.8, 1.0):
            found = g(latents, one_hot, level, alpha).detach().numpy()
            expected = Naive(g).generate(latents.numpy(), given, level, alpha)
            np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize(("num_classes", "residual"), [(0, True), (0, False), (3, False)])
@pytest.mark.parametrize("resampling", Resampling)
def test_the_discriminator_is_the_naive_one_at_every_level_and_alpha(resampling, num_classes, residual):
    d = ready(Discriminator, variant(TINY, resampling=resampling, num_classes=num_classes, residual=residual)).double()
    for level in (4, 8, 16):
        images = normal(4, 3, level, level, seed=level, dtype=torch.float64)
        for alpha in (0.0, 0.3, 0.8, 1.0):
            scores, logits = d(images, level, alpha)
            expected = Naive(d).scores(images.numpy(), level, alpha)
            assert scores.shape == (4,)
            assert logits.shape == (4, num_classes)
            np.testing.assert_allclose(scores.detach().numpy(), expected[:, 0], atol=2e-6)  # ends in float32
            np.testing.assert_allclose(logits.detach().numpy(), expected[:, 1:], atol=2e-6)


def test_float32_networks_are_the_naive_ones_to_rounding():
    g, d = ready(Generator, TINY), ready(Discriminator, TINY)
    latents = normal(4, 7)
    images = g(latents, None, 16, 0.4)
    np.testing.assert_allclose(
        images.detach(), Naive(g).generate(latents.double().numpy(), None, 16, 0.4), atol=2e-5, rtol=1e-5
    )
    expected = Naive(d).scores(images.detach().double().numpy(), 16, 0.4)[:, 0]
    np.testing.assert_allclose(d(images, 16, 0.4)[0].detach(), expected, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("resampling", Resampling)
def test_half_precision_networks_are_the_naive_ones_to_the_rounding_of_each_layer(resampling, dtype):
    # A rounding changes a number by a random share of at most u.  Each of 6 layers on the way, and of 2 at the ends of
    # the fade, rounds its kernel, its result and (G) the norm of it or (D) the blend or the mean: 8 * 3 in all, of
    # which equalised layers neither enlarge nor shrink the earlier ones.
    architecture = variant(TINY, resampling=resampling)
    g, d = ready(Generator, architecture), ready(Discriminator, architecture)
    latents, images = normal(16, 7), normal(16, 3, 16, 16, seed=1)
    options = ComputeOptions(dtype=dtype)
    with torch.no_grad(), use_options(g, options), use_options(d, options):
        drawn, (scores, _) = g(latents, None, 16, 0.4), d(images, 16, 0.4)
    bound = math.sqrt(8 * 3) * torch.finfo(dtype).eps / 2
    for found, expected in (
        (drawn, Naive(g).generate(latents.double().numpy(), None, 16, 0.4)),
        (scores, Naive(d).scores(images.double().numpy(), 16, 0.4)[:, 0]),
    ):
        assert found.dtype == torch.float32
        assert np.linalg.norm(found.numpy() - expected) < bound * np.linalg.norm(expected)


@pytest.mark.parametrize("resampling", Resampling)
def test_the_pooling_layer_activates_in_the_order_of_its_resampling(resampling):
    block = ready(lambda _: DiscriminatorBlock(4, 5, resampling), None).double()
    x = normal(2, 4, 6, 6, dtype=torch.float64)
    convolved = x.numpy()
    for layer in (block.conv, block.down_conv):
        before = convolved if layer is block.conv else naive_activation(convolved)
        weight, bias = layer.weight.detach().numpy() * math.sqrt(2 / 36), layer.bias.detach().numpy()
        convolved = naive_conv(before, weight, bias)
    pooled_first, activated_first = naive_activation(naive_down(convolved)), naive_down(naive_activation(convolved))
    assert np.abs(pooled_first - activated_first).max() > 0.1
    expected = pooled_first if resampling is Resampling.fused else activated_first
    np.testing.assert_allclose(block(x).detach().numpy(), expected, atol=1e-12)


def test_fused_and_unfused_generators_are_the_same_function():
    fused = ready(Generator, TINY).double()
    unfused = Generator(variant(TINY, resampling=Resampling.unfused)).double()
    unfused.load_state_dict(fused.state_dict())
    latents = normal(3, 7, dtype=torch.float64)
    for level, alpha in ((8, 1.0), (16, 0.5), (16, 1.0)):
        torch.testing.assert_close(
            fused(latents, None, level, alpha), unfused(latents, None, level, alpha), atol=1e-10, rtol=1e-10
        )


def test_fused_and_unfused_discriminators_are_different_functions_except_at_4x4():
    fused, unfused = Discriminator(TINY), Discriminator(variant(TINY, resampling=Resampling.unfused))
    initialize(fused, 0, "d")
    unfused.load_state_dict(fused.state_dict())
    images = normal(4, 3, 16, 16)
    assert (fused(images, 16)[0] - unfused(images, 16)[0]).abs().max() > 1e-2
    images = downsample(downsample(images))
    assert torch.equal(fused(images, 4)[0], unfused(images, 4)[0])


@pytest.mark.parametrize("factor", [0.1, 3.0, 1000.0])
def test_the_length_of_a_latent_does_not_matter(factor):
    g = ready(Generator, TINY).double()
    latents = normal(3, 7, dtype=torch.float64)
    # Up to epsilon, which the pixel norms of later layers can amplify.
    torch.testing.assert_close(g(latents * factor, None, 16), g(latents, None, 16), atol=1e-4, rtol=1e-4)


def test_labels_are_normalised_together_with_the_latent():
    g = ready(Generator, variant(TINY, num_classes=2))
    latents, labels = normal(2, 7), torch.eye(2)
    torch.testing.assert_close(g(5 * latents, 5 * labels, 8), g(latents, labels, 8), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(g(5 * latents, labels, 8), g(latents, labels, 8), atol=1e-3)


def test_scores_are_those_of_each_group_by_itself():
    d = ready(Discriminator, TINY)
    images = normal(6, 3, 8, 8)
    together = d(images, 8)[0]
    for m in range(3):  # groups of 2: images m and m + 3
        torch.testing.assert_close(d(images[[m, m + 3]], 8)[0], together[[m, m + 3]], atol=1e-5, rtol=1e-5)
    assert (d(images[:1], 8)[0] - together[:1]).abs().max() > 1e-5


def test_scores_of_joined_batches_are_those_of_each_batch_by_itself():
    d = ready(Discriminator, TINY)
    first, second = normal(4, 3, 16, 16), 2 * normal(4, 3, 16, 16, seed=1)
    for alpha in (0.0, 0.5, 1.0):
        joined = d(torch.cat([first, second]), 16, alpha, sub_batches=2)[0]
        apart = torch.cat([d(first, 16, alpha)[0], d(second, 16, alpha)[0]])
        torch.testing.assert_close(joined, apart, atol=2e-5, rtol=1e-5)
    assert (joined - d(torch.cat([first, second]), 16)[0]).abs().max() > 1e-3  # one batch is something else


# ---- whole networks -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("level", "resampling"),
    [*((r, Resampling.fused) for r in LEVELS), *((r, Resampling.unfused) for r in (4, 8, 16, 32, 64, 128))],
)
def test_every_level_gives_finite_images_and_scores_of_the_right_shape(level, resampling):
    architecture = variant(TALL, resampling=resampling, channels=1 if level > 64 else 5)
    g, d = Generator(architecture), Discriminator(architecture)
    initialize(g, 0, "g")
    initialize(d, 0, "d")
    count = 1 if level > 128 else 2
    with torch.no_grad():
        images = g(normal(count, 7), None, level, 0.5)
        scores, logits = d(images, level, 0.5)
    assert images.shape == (count, architecture.channels, level, level)
    assert scores.shape == (count,)
    assert logits.shape == (count, 0)
    assert scores.dtype == images.dtype == torch.float32
    assert torch.isfinite(images).all()
    assert torch.isfinite(scores).all()


def test_images_at_the_start_of_training_have_about_the_range_of_reals():
    g = Generator(variant(resolution=4))
    initialize(g, 0, "g")
    with torch.no_grad():
        assert g(normal(8, 512), None, 4).std().item() == pytest.approx(1, rel=0.4)


def test_labels_change_the_image():
    g = ready(Generator, variant(TINY, num_classes=3))
    latents = normal(1, 7).expand(3, -1)
    images = g(latents, torch.eye(3), 8)
    assert (images[0] - images[1]).abs().max() > 1e-2
    assert (images[1] - images[2]).abs().max() > 1e-2


def test_class_logits_are_separate_from_the_score():
    d = ready(Discriminator, variant(TINY, num_classes=3))
    images = normal(2, 3, 8, 8)
    scores, logits = d(images, 8)
    assert logits.shape == (2, 3)
    with torch.no_grad():
        d.head.score.bias += torch.tensor([1.0, 0, 0, 5.0])
    changed_scores, changed_logits = d(images, 8)
    torch.testing.assert_close(changed_scores, scores + 1)
    torch.testing.assert_close(changed_logits, logits + torch.tensor([0, 0, 5.0]))
