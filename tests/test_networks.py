"""The networks, against the official layer tables and against naive NumPy networks in float64."""

import math
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

from pggan.core.architecture import Geometry, Resampling
from pggan.core.rng import StepRng
from pggan.core.schedule import Phase
from pggan.data.stream.reals import RealStream
from pggan.networks.networks import (
    Discriminator,
    DiscriminatorBlock,
    EqualizedConv,
    EqualizedLinear,
    Generator,
    ToOrFromRGB,
    count_parameters,
    downsample,
    fade,
    initialize,
    minibatch_stddev,
    pixel_norm,
    upsample,
)
from tests.definitions import PAPER, variant

# A few maps per level, of different numbers at 4, 8 and 16 so that mixed-up widths show.
TINY = variant(resolution=16, latent_size=7, fmap_base=24, fmap_max=9, stddev_group=2)
LEVELS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)


def on_meta(network, architecture):
    with torch.device("meta"):
        return network(architecture)


def with_stddev(features, group, parts=1):
    """The features and, as the last map, their minibatch standard deviation."""
    values = minibatch_stddev(features, group, parts)
    return torch.cat([features, values[:, None, None, None].expand(-1, 1, *features.shape[2:])], 1)


def ready(network, architecture, seed=0):
    """A network with initial weights and, so that they matter, biases that are not 0."""
    made = network(architecture)
    initialize(made, seed, network.__name__)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in made.named_parameters():
        if name.endswith("bias"):
            parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return made


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


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
        ({"resolution": 32, "labels": 10}, 20_801_548, 20_731_915),
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
    architecture = variant(labels=10)
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


@pytest.mark.parametrize(
    ("layer", "shape", "gain"),
    [
        (lambda: EqualizedLinear(400, 300), (200, 300), 2),
        (lambda: EqualizedLinear(400, 300, gain=1.0), (200, 300), 1),
        (lambda: EqualizedConv(64, 48, 3, 3), (8, 48, 16, 16), 2),
        (lambda: ToOrFromRGB(200, 96, 1, 1, gain=1.0), (8, 96, 16, 16), 1),
        (lambda: EqualizedConv(64, 48, 3, 3, geometry=Geometry.up), (8, 48, 16, 16), 2),
    ],
)
def test_an_equalized_layer_keeps_the_scale_of_its_input(layer, shape, gain):
    made = layer()
    initialize(made, 0, "layer")
    with torch.no_grad():
        out = made(normal(*shape)).double()
    inner = out[..., 2:-2, 2:-2] if out.dim() == 4 else out  # the border sees zeros
    assert inner.var().item() == pytest.approx(gain, rel=0.1)  # He's gain^2 = 2 makes up for the activation …
    if gain == 2:
        assert F.leaky_relu(inner, 0.2).square().mean().item() == pytest.approx(1.04, rel=0.1)  # … 2 * (1 + .2^2) / 2


@pytest.mark.parametrize("resampling", Resampling)
def test_a_pooling_layer_keeps_the_scale_of_an_even_image(resampling):
    made = DiscriminatorBlock(200, 300, resampling)
    initialize(made, 0, "layer")
    even = normal(4, 200, 1, 1).expand(-1, -1, 12, 12)
    with torch.no_grad():
        out = made(even)[..., 2:-2, 2:-2]
    assert out.square().mean().item() == pytest.approx(1.04, rel=0.15)


def test_the_features_of_every_generator_block_have_unit_mean_square():
    g = Generator(variant(TINY, fmap_base=512, fmap_max=64, latent_size=64))
    initialize(g, 0, "g")
    x = g.features(normal(2, 64), None)
    for level in ("8", "16"):
        assert x.square().mean(1).allclose(torch.ones(()), atol=1e-4)
        x = g.blocks[level](x)
    assert x.square().mean(1).allclose(torch.ones(()), atol=1e-4)


# ---- naive networks in NumPy, float64 --------------------------------------------------------------------

HE = math.sqrt(2)  # gain for rectified activations


def naive_conv(x, weight, bias):
    """One output at a time is too slow; one kernel tap at a time is plain enough.  Zero padding by half a kernel."""
    side = weight.shape[-1]
    pad = side // 2
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    height, width = x.shape[2] - side + 1, x.shape[3] - side + 1
    out = np.zeros((x.shape[0], weight.shape[0], height, width))
    for row in range(side):
        for column in range(side):
            seen = x[:, :, row : row + height, column : column + width]
            out += np.einsum("ncij,oc->noij", seen, weight[:, :, row, column], optimize=True)
    return out + bias[:, None, None]


def naive_up(x):
    out = np.zeros((*x.shape[:2], 2 * x.shape[2], 2 * x.shape[3]))
    for row in (0, 1):
        for column in (0, 1):
            out[:, :, row::2, column::2] = x
    return out


def naive_down(x):
    return (x[:, :, ::2, ::2] + x[:, :, 1::2, ::2] + x[:, :, ::2, 1::2] + x[:, :, 1::2, 1::2]) / 4


def naive_activation(x):
    return np.where(x < 0, 0.2 * x, x)


def naive_pixel_norm(x):
    return x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-8)


def naive_stddev(x, group):
    count = len(x)
    size = min(group, count)
    groups = count // size
    values = np.zeros(count)
    for m in range(groups):
        members = [m + k * groups for k in range(size)]
        deviations = np.sqrt(x[members].var(0) + 1e-8)
        values[members] = deviations.mean()
    maps = np.broadcast_to(values[:, None, None, None], (count, 1, *x.shape[2:]))
    return np.concatenate([x, maps], 1)


class Naive:
    """Both networks straight from the definition, with the weights of `network`."""

    def __init__(self, network):
        self.values = {name: tensor.double().numpy() for name, tensor in network.state_dict().items()}
        self.group = network.architecture.stddev_group
        self.fused = network.architecture.resampling is Resampling.fused

    def layer(self, name, gain=HE):
        weight, bias = self.values[f"{name}.weight"], self.values[f"{name}.bias"]
        return weight * gain / math.sqrt(np.prod(weight.shape[1:])), bias

    def conv(self, name, x, gain=HE):
        return naive_conv(x, *self.layer(name, gain))

    def generate(self, latents, labels, resolution, alpha=1.0):
        x = latents if labels is None else np.concatenate([latents, labels], 1)
        weight, bias = self.layer("stem.dense", math.sqrt(2) / 4)
        x = (naive_pixel_norm(x) @ weight.T).reshape(len(x), -1, 4, 4) + bias[:, None, None]
        x = naive_pixel_norm(naive_activation(x))
        x = old = naive_pixel_norm(naive_activation(self.conv("stem.conv", x)))
        level = 8
        while level <= resolution:
            old = x
            for up, name in ((True, "up_conv"), (False, "conv")):
                x = naive_up(x) if up else x
                x = naive_pixel_norm(naive_activation(self.conv(f"blocks.{level}.{name}", x)))
            level *= 2
        images = self.conv(f"to_rgb.{resolution}", x, 1)
        if resolution == 4 or alpha == 1:
            return images
        return alpha * images + (1 - alpha) * naive_up(self.conv(f"to_rgb.{resolution // 2}", old, 1))

    def judge(self, images, resolution, alpha=1.0):
        x, level = naive_activation(self.conv(f"from_rgb.{resolution}", images)), resolution
        while level > 4:
            x = naive_activation(self.conv(f"blocks.{level}.conv", x))
            x = self.conv(f"blocks.{level}.down_conv", x)
            x = naive_activation(naive_down(x)) if self.fused else naive_down(naive_activation(x))
            if level == resolution and alpha < 1:
                old = naive_activation(self.conv(f"from_rgb.{level // 2}", naive_down(images)))
                x = alpha * x + (1 - alpha) * old
            level //= 2
        x = naive_activation(self.conv("head.conv", naive_stddev(x, self.group)))
        weight, bias = self.layer("head.dense")
        x = naive_activation(x.reshape(len(x), -1) @ weight.T + bias)
        weight, bias = self.layer("head.score", 1)
        return x @ weight.T + bias


@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("resampling", Resampling)
def test_the_generator_is_the_naive_one_at_every_level_and_alpha(resampling, labels):
    g = ready(Generator, variant(TINY, resampling=resampling, labels=labels)).double()
    latents = normal(3, 7, dtype=torch.float64)
    one_hot = torch.eye(3, dtype=torch.float64) if labels else None
    given = None if one_hot is None else one_hot.numpy()
    for level in (4, 8, 16):
        for alpha in (0.0, 0.3, 0.8, 1.0):
            found = g(latents, one_hot, level, alpha).detach().numpy()
            expected = Naive(g).generate(latents.numpy(), given, level, alpha)
            np.testing.assert_allclose(found, expected, atol=1e-10)


@pytest.mark.parametrize("labels", [0, 3])
@pytest.mark.parametrize("resampling", Resampling)
def test_the_discriminator_is_the_naive_one_at_every_level_and_alpha(resampling, labels):
    d = ready(Discriminator, variant(TINY, resampling=resampling, labels=labels)).double()
    for level in (4, 8, 16):
        images = normal(4, 3, level, level, seed=level, dtype=torch.float64)
        for alpha in (0.0, 0.3, 0.8, 1.0):
            scores, logits = d(images, level, alpha)
            expected = Naive(d).judge(images.numpy(), level, alpha)
            assert scores.shape == (4,)
            assert logits.shape == (4, labels)
            np.testing.assert_allclose(scores.detach().numpy(), expected[:, 0], atol=2e-6)  # ends in float32
            np.testing.assert_allclose(logits.detach().numpy(), expected[:, 1:], atol=2e-6)


def test_float32_networks_are_the_naive_ones_to_rounding():
    g, d = ready(Generator, TINY), ready(Discriminator, TINY)
    latents = normal(4, 7)
    images = g(latents, None, 16, 0.4)
    np.testing.assert_allclose(
        images.detach(), Naive(g).generate(latents.double().numpy(), None, 16, 0.4), atol=2e-5, rtol=1e-5
    )
    expected = Naive(d).judge(images.detach().double().numpy(), 16, 0.4)[:, 0]
    np.testing.assert_allclose(d(images, 16, 0.4)[0].detach(), expected, atol=2e-5, rtol=1e-5)


# ---- fused resampling ------------------------------------------------------------------------------------


def test_fused_upsampling_is_nearest_upsampling_and_convolution():
    layer = EqualizedConv(5, 4, 3, 3, geometry=Geometry.up)
    initialize(layer, 0, "layer")
    layer.bias.data = normal(5)
    layer.double()
    x = normal(2, 4, 6, 6, dtype=torch.float64)
    weight = layer.weight.detach().numpy() * math.sqrt(2 / 36)
    expected = naive_conv(naive_up(x.numpy()), weight, layer.bias.detach().numpy())
    np.testing.assert_allclose(layer(x).detach().numpy(), expected, atol=1e-12)


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


def test_resampling_is_by_nearest_neighbour_and_by_the_mean_of_boxes():
    image = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]]]])
    assert upsample(image).tolist() == [[[[1, 1, 2, 2], [1, 1, 2, 2], [3, 3, 6, 6], [3, 3, 6, 6]]]]
    assert downsample(image).tolist() == [[[[3.0]]]]
    assert torch.equal(downsample(upsample(image)), image)


# ---- pixel norm ------------------------------------------------------------------------------------------


def test_pixel_norm_divides_each_pixel_by_the_root_mean_square_of_its_features():
    x = normal(2, 5, 3, 4)
    found = pixel_norm(x)
    for n in range(2):
        for i in range(3):
            for j in range(4):
                values = x[n, :, i, j].tolist()
                root = math.sqrt(sum(v * v for v in values) / 5 + 1e-8)
                assert found[n, :, i, j].tolist() == pytest.approx([v / root for v in values], rel=1e-5)


def test_pixel_norm_of_hand_numbers():
    torch.testing.assert_close(pixel_norm(torch.tensor([[3.0, 4.0]])), torch.tensor([[3.0, 4.0]]) / math.sqrt(12.5))
    assert torch.equal(pixel_norm(torch.zeros(1, 4)), torch.zeros(1, 4))
    tiny = torch.full((1, 4), 1e-4)  # as large as the root of epsilon
    torch.testing.assert_close(pixel_norm(tiny), torch.full((1, 4), math.sqrt(0.5)))


@pytest.mark.parametrize("factor", [0.1, 3.0, 1000.0])
def test_the_length_of_a_latent_does_not_matter(factor):
    g = ready(Generator, TINY).double()
    latents = normal(3, 7, dtype=torch.float64)
    # Up to epsilon, which the pixel norms of later layers can amplify.
    torch.testing.assert_close(g(latents * factor, None, 16), g(latents, None, 16), atol=1e-4, rtol=1e-4)


def test_labels_are_normalised_together_with_the_latent():
    g = ready(Generator, variant(TINY, labels=2))
    latents, labels = normal(2, 7), torch.eye(2)
    torch.testing.assert_close(g(5 * latents, 5 * labels, 8), g(latents, labels, 8), atol=1e-5, rtol=1e-5)
    assert not torch.allclose(g(5 * latents, labels, 8), g(latents, labels, 8), atol=1e-3)


# ---- minibatch stddev ------------------------------------------------------------------------------------


def test_minibatch_stddev_of_a_worked_example_with_strided_groups():
    # Four images of two maps at 1x1; groups of 2: images 0 and 2, images 1 and 3.
    x = torch.tensor([[0.0, 10.0], [1.0, 7.0], [4.0, 10.0], [7.0, 1.0]])[:, :, None, None]
    # Group 0: biased deviations 2 and 0 (1e-4 with epsilon), mean 1.00005; group 1: 3 and 3, mean 3.
    out = with_stddev(x, 2)
    assert torch.equal(out[:, :2], x)
    assert out[:, 2].flatten().tolist() == pytest.approx([1.00005, 3.0, 1.00005, 3.0], abs=1e-6)


def test_minibatch_stddev_averages_over_all_maps_and_positions_into_one_even_map():
    x = torch.zeros(2, 2, 2, 2)
    x[1] = torch.tensor([[[2.0, 4.0], [6.0, 8.0]], [[10.0, 12.0], [14.0, 16.0]]])
    out = with_stddev(x, 2)  # deviations are half of each: 1 … 8, mean 4.5
    assert out.shape == (2, 3, 2, 2)
    torch.testing.assert_close(out[:, 2], torch.full((2, 2, 2), 4.5))


def test_minibatch_stddev_of_four_has_the_biased_variance():
    x = torch.tensor([0.0, 0.0, 4.0, 4.0])[:, None, None, None]  # deviation 2; the unbiased one is 2.309
    torch.testing.assert_close(with_stddev(x, 4)[:, 1].flatten(), torch.full((4,), 2.0))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_minibatch_stddev_of_identical_images_is_the_root_of_epsilon(count):
    x = normal(1, 3, 4, 4).expand(count, -1, -1, -1)
    found = with_stddev(x, 4)[:, 3]
    torch.testing.assert_close(found, torch.full((count, 4, 4), 1e-4), atol=1e-9, rtol=1e-3)


def test_minibatch_stddev_keeps_its_precision_far_from_0():
    # Deviation 1 around 1000: mean of squares minus square of mean would lose it in float32.
    x = torch.tensor([999.0, 1001.0])[:, None, None, None]
    torch.testing.assert_close(with_stddev(x, 2)[:, 1].flatten(), torch.ones(2))


def test_a_group_larger_than_the_batch_is_the_whole_batch():
    x = normal(3, 2, 4, 4)
    assert torch.equal(with_stddev(x, 16), with_stddev(x, 3))
    deviation = np.sqrt(x.double().numpy().var(0) + 1e-8).mean()
    torch.testing.assert_close(with_stddev(x, 16)[:, 2], torch.full((3, 4, 4), float(deviation)))


def test_minibatch_stddev_does_not_depend_on_the_order_within_a_group():
    x = normal(8, 3, 4, 4)  # two groups: 0 2 4 6 and 1 3 5 7
    plain, shuffled = with_stddev(x, 4), with_stddev(x[[4, 7, 0, 1, 6, 3, 2, 5]], 4)
    torch.testing.assert_close(plain[:, 3], shuffled[:, 3], atol=1e-6, rtol=1e-6)
    across = with_stddev(x[[1, 0, 2, 3, 4, 5, 6, 7]], 4)
    assert (plain[:, 3] - across[:, 3]).abs().max() > 1e-4


def test_minibatch_stddev_takes_groups_that_are_strided_not_adjacent():
    x = torch.tensor([0.0, 5.0, 0.0, 5.0])[:, None, None, None].expand(-1, 2, 4, 4)
    torch.testing.assert_close(with_stddev(x, 2)[:, 2], torch.full((4, 4, 4), 1e-4))


def test_gradients_through_minibatch_stddev_are_those_of_finite_differences():
    x = normal(4, 1, 1, 2, seed=2).requires_grad_()
    weights = torch.tensor([1.0, -2.0, 3.0, 0.5])
    (with_stddev(x, 2)[:, 1, 0, 0] * weights).sum().backward()

    def value(array):
        return (naive_stddev(array, 2)[:, 1, 0, 0] * weights.numpy()).sum()

    base = x.detach().double().numpy()
    for index in np.ndindex(base.shape):
        moved = np.zeros_like(base)
        moved[index] = 1e-6
        expected = (value(base + moved) - value(base - moved)) / 2e-6
        assert x.grad[index].item() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("count", [1, 4])
def test_first_and_second_gradients_are_finite_for_identical_images(count):
    x = normal(1, 3, 4, 4).repeat(count, 1, 1, 1).requires_grad_()
    (gradient,) = torch.autograd.grad(with_stddev(x, 4).square().sum(), x, create_graph=True)
    assert torch.isfinite(gradient).all()
    gradient.square().sum().backward()
    assert torch.isfinite(x.grad).all()


def test_scores_are_those_of_each_group_by_itself():
    d = ready(Discriminator, TINY)
    images = normal(6, 3, 8, 8)
    together = d(images, 8)[0]
    for m in range(3):  # groups of 2: images m and m + 3
        torch.testing.assert_close(d(images[[m, m + 3]], 8)[0], together[[m, m + 3]], atol=1e-5, rtol=1e-5)
    assert (d(images[:1], 8)[0] - together[:1]).abs().max() > 1e-5


@pytest.mark.parametrize(("count", "group"), [(4, 2), (4, 4), (3, 4), (1, 4), (6, 2)])
def test_joined_batches_have_groups_of_their_own(count, group):
    first, second, third = normal(3 * count, 3, 4, 4).chunk(3)
    joined = with_stddev(torch.cat([first, 5 * second, third]), group, parts=3)
    expected = [naive_stddev(x.double().numpy(), group) for x in (first, 5 * second, third)]
    np.testing.assert_allclose(joined.numpy(), np.concatenate(expected), atol=1e-5)


def test_scores_of_joined_batches_are_those_of_each_batch_by_itself():
    d = ready(Discriminator, TINY)
    first, second = normal(4, 3, 16, 16), 2 * normal(4, 3, 16, 16, seed=1)
    for alpha in (0.0, 0.5, 1.0):
        joined = d(torch.cat([first, second]), 16, alpha, parts=2)[0]
        apart = torch.cat([d(first, 16, alpha)[0], d(second, 16, alpha)[0]])
        torch.testing.assert_close(joined, apart, atol=2e-5, rtol=1e-5)
    assert (joined - d(torch.cat([first, second]), 16)[0]).abs().max() > 1e-3  # one batch is something else


# ---- fade ------------------------------------------------------------------------------------------------

TALL = variant(TINY, resolution=1024, fmap_base=1024, fmap_max=4)


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
    x = g.stem(pixel_norm(latents))
    for resolution in LEVELS[1 : LEVELS.index(level) + 1]:
        x = g.blocks[str(resolution)](x)
    return g.to_rgb[str(level)](x)


def plain_discriminator(d, images, level):
    x = F.leaky_relu(d.from_rgb[str(level)](images), 0.2)
    for resolution in LEVELS[LEVELS.index(level) : 0 : -1]:
        x = d.blocks[str(resolution)](x)
    return d.head(x, parts=1)[:, 0]


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
        expected = tall_d.head(x, parts=1)[:, 0]
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


def test_a_fade_is_exact_at_both_ends_for_any_numbers():
    old, new = normal(1000) * 1e4, normal(1000, seed=1) * 1e-4
    assert torch.equal(fade(old, new, 0.0), old)
    assert torch.equal(fade(old, new, 1.0), new)
    assert fade(torch.tensor([2.0]), torch.tensor([10.0]), 0.25).item() == 4.0


def test_a_fade_changes_continuously(tall_g):
    latents = normal(1, 7)
    with torch.no_grad():
        images = [tall_g(latents, None, 16, alpha) for alpha in (0, 1e-4, 0.5 - 1e-4, 0.5, 0.5 + 1e-4, 1 - 1e-4, 1)]
    for first, second in ((0, 1), (2, 3), (3, 4), (5, 6)):
        assert (images[first] - images[second]).abs().max() < 2e-3


# ---- reals -----------------------------------------------------------------------------------------------


def stream_of(images, mirror=False):
    """A stream over uint8 `images` [N, R, R, C], all of them at their own resolution."""
    pyramid = SimpleNamespace(
        images=len(images),
        labels=None,
        class_names=None,
        resolutions=(images.shape[1],),
        level_bytes=lambda resolution: images.nbytes,
        read=lambda resolution, indices: images[indices],
    )
    return RealStream(pyramid, 0, torch.device("cpu"), mirror, labels=False, budget=images.nbytes)


def phase_at(resolution, alpha, batch):
    return Phase(0, resolution, alpha < 1, alpha, 0, 1000, batch, 0.001, 0.001, 0)


def batch_of(images, alpha):
    phase = phase_at(images.shape[1], alpha, len(images))
    return stream_of(images).batch(phase, StepRng(0, 0, torch.device("cpu"))).images


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_an_even_real_image_passes_a_fade_unchanged(alpha):
    images = np.broadcast_to(np.array([0, 51, 255], np.uint8), (2, 8, 8, 3))
    expected = torch.tensor([-1.0, -0.6, 1.0])[None, :, None, None].expand(2, -1, 8, 8)
    torch.testing.assert_close(batch_of(images, alpha), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.5, 0.9, 1.0])
def test_fading_reals_blend_in_their_detail_like_the_generator(alpha):
    images = np.random.default_rng(0).integers(0, 256, (1, 8, 8, 3), dtype=np.uint8)
    exact = images.transpose(0, 3, 1, 2) / 127.5 - 1
    expected = alpha * exact + (1 - alpha) * naive_up(naive_down(exact))
    np.testing.assert_allclose(batch_of(images, alpha).numpy(), expected, atol=1e-6)


def test_reals_at_the_start_of_a_fade_are_exactly_the_upsampled_pooled_ones():
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    full = batch_of(images, 1.0)
    pooled = F.avg_pool2d(full, 2).repeat_interleave(2, 2).repeat_interleave(2, 3)
    assert torch.equal(batch_of(images, 0.0), pooled)


# ---- whole networks --------------------------------------------------------------------------------------


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
    g = ready(Generator, variant(TINY, labels=3))
    latents = normal(1, 7).expand(3, -1)
    images = g(latents, torch.eye(3), 8)
    assert (images[0] - images[1]).abs().max() > 1e-2
    assert (images[1] - images[2]).abs().max() > 1e-2


def test_class_logits_are_separate_from_the_score():
    d = ready(Discriminator, variant(TINY, labels=3))
    images = normal(2, 3, 8, 8)
    scores, logits = d(images, 8)
    assert logits.shape == (2, 3)
    with torch.no_grad():
        d.head.score.bias += torch.tensor([1.0, 0, 0, 5.0])
    changed_scores, changed_logits = d(images, 8)
    torch.testing.assert_close(changed_scores, scores + 1)
    torch.testing.assert_close(changed_logits, logits + torch.tensor([0, 0, 5.0]))
