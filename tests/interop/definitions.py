"""Generators of other programs, by their definitions, and files as they write them.

Random weights; no code of these programs is needed.  Layers are a weight [O, I, …] and a bias by the names in LAYERS.
"""

import pickle
import sys
from collections import OrderedDict
from contextlib import contextmanager
from itertools import pairwise
from math import sqrt
from types import ModuleType

import numpy as np
import torch
import torch.nn.functional as F

from tests.networks.naive import HE, naive_activation, naive_conv, naive_down

LATENTS, CHANNELS = 6, 3
WIDTHS = [8, 8, 4]  # feature maps at 4x4, 8x8 and 16x16
LAYERS = ("dense", "conv", "up1", "conv1", "up2", "conv2", "rgb0", "rgb1", "rgb2")
OFFICIAL = (
    *("4x4/Dense", "4x4/Conv", "8x8/Conv0", "8x8/Conv1", "16x16/Conv0", "16x16/Conv1"),
    *("ToRGB_lod2", "ToRGB_lod1", "ToRGB_lod0"),
)
ZOO = (
    *("formatLayer", "groupScale0.0", "scaleLayers.0.0", "scaleLayers.0.1", "scaleLayers.1.0", "scaleLayers.1.1"),
    *("toRGBLayers.0", "toRGBLayers.1", "toRGBLayers.2"),
)
LAYERS_D = ("rgb0", "rgb1", "rgb2", "conv1", "down1", "conv2", "down2", "conv", "dense", "score")
OFFICIAL_D = (
    *("FromRGB_lod2", "FromRGB_lod1", "FromRGB_lod0", "8x8/Conv0", "8x8/Conv1", "16x16/Conv0", "16x16/Conv1"),
    *("4x4/Conv", "4x4/Dense0", "4x4/Dense1"),
)
ZOO_D = (
    *("fromRGBLayers.0", "fromRGBLayers.1", "fromRGBLayers.2", "scaleLayers.0.0", "scaleLayers.0.1"),
    *("scaleLayers.1.0", "scaleLayers.1.1", "groupScaleZero.0", "groupScaleZero.1", "decisionLayer"),
)
PRO_GAN_D = (
    *("from_rgb.2.0", "from_rgb.1.0", "from_rgb.0.0", "layers.1.conv_1", "layers.1.conv_2"),
    *("layers.0.conv_1", "layers.0.conv_2", "layers.2.conv_1", "layers.2.conv_2", "layers.2.conv_3"),
)
PRO_GAN = (
    *(f"layers.{number}.{conv}" for number in range(3) for conv in ("conv_1", "conv_2")),
    *("rgb_converters.0", "rgb_converters.1", "rgb_converters.2"),
)


def random_layers(shapes, seed, **biases):
    """A weight of each shape, and a bias for each of its outputs, or as many as `biases` says."""
    random = torch.Generator().manual_seed(seed)
    return {
        name: (torch.randn(shape, generator=random), torch.randn(biases.get(name, shape[0]), generator=random))
        for name, shape in shapes.items()
    }


def layers_of(labels=0, dense_biases=WIDTHS[0]):
    """Random layers; the dense one has a bias per feature map, or per number."""
    shapes = {"dense": (16 * WIDTHS[0], LATENTS + labels), "conv": (WIDTHS[0], WIDTHS[0], 3, 3)}
    for number, (inner, outer) in enumerate(pairwise(WIDTHS), 1):
        shapes |= {f"up{number}": (outer, inner, 3, 3), f"conv{number}": (outer, outer, 3, 3)}
    shapes |= {f"rgb{number}": (CHANNELS, width, 1, 1) for number, width in enumerate(WIDTHS)}
    return random_layers(shapes, labels, dense=dense_biases)


def d_layers_of(labels=0):
    shapes = {"conv": (WIDTHS[0], WIDTHS[0] + 1, 3, 3), "dense": (8, 16 * WIDTHS[0]), "score": (1 + labels, 8)}
    for number, (outer, inner) in enumerate(pairwise(WIDTHS), 1):
        shapes |= {f"conv{number}": (inner, inner, 3, 3), f"down{number}": (outer, inner, 3, 3)}
    shapes |= {f"rgb{number}": (width, CHANNELS, 1, 1) for number, width in enumerate(WIDTHS)}
    return random_layers(shapes, 50 + labels)


def scores(layers, images, share, *, fused=False, score_gain=HE, scales_biases=False, divides_by=4):
    """The outputs [N, 1 + L] of D for 4 images [4, 3, 16, 16], in numpy and float64; `share` weighs the level below."""

    def linear(x, name, gain=HE, halves=False):
        weight, bias = (each.numpy().astype(float) for each in layers[name])
        scale = gain / sqrt(weight[0].size)
        weight, bias = weight * scale, bias * scale if scales_biases else bias
        if weight.ndim == 2:
            return x.reshape(len(x), -1) @ weight.T + bias
        if not halves:
            return naive_conv(x, weight, bias)
        # A convolution by 4x4, the mean of four shifted ones, at every second pixel.
        weight = sum(np.pad(weight, [(0, 0), (0, 0), (a, 1 - a), (b, 1 - b)]) for a in (0, 1) for b in (0, 1)) / 4
        return naive_conv(x, weight, bias)[..., 1::2, 1::2]

    def layer(*given, **how):
        return naive_activation(linear(*given, **how))

    def halved(x, number):
        x = layer(x, f"conv{number}")
        return layer(x, f"down{number}", halves=True) if fused else naive_down(layer(x, f"down{number}"))

    images = images.numpy().astype(float)
    x = (1 - share) * halved(layer(images, "rgb2"), 2) + share * layer(naive_down(images), "rgb1")
    x = halved(x, 1)
    deviation = np.sqrt(((x - x.mean(0)) ** 2).sum(0) / divides_by + 1e-8).mean()
    x = np.concatenate([x, np.full((4, 1, 4, 4), deviation)], 1)
    return linear(layer(layer(x, "conv"), "dense"), "score", score_gain)


def norm(x):
    return x / (x.square().mean(1, keepdim=True) + 1e-8).sqrt()


def double(x):
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


def fused_up(x, weight):
    """The official code's transposed convolution, whose kernel is the sum of four shifted ones."""
    kernel = F.pad(weight.transpose(0, 1), (1, 1, 1, 1))
    kernel = kernel[..., 1:, 1:] + kernel[..., :-1, 1:] + kernel[..., 1:, :-1] + kernel[..., :-1, :-1]
    return F.conv_transpose2d(x, kernel, stride=2, padding=1)


def images(layers, latents, share, *, dense_gain=HE, rgb_gain=HE, scales_biases=False, norms_dense=True, fused=False):
    """Images [N, 3, 16, 16]: of the last level, and with the weight `share` of the level below."""

    def layer(x, name, gain=HE):
        weight, bias = layers[name]
        scale = gain / sqrt(weight[0].numel())
        weight, bias = weight * scale, bias * scale if scales_biases else bias
        if weight.ndim == 2:
            return (F.linear(x, weight) + bias.repeat_interleave(len(weight) // len(bias))).view(len(x), -1, 4, 4)
        up = name.startswith("up")
        if up and fused:
            return fused_up(x, weight) + bias.view(-1, 1, 1)
        return F.conv2d(double(x) if up else x, weight, bias, padding=weight.shape[2] // 2)

    def activated(x, name):
        return norm(F.leaky_relu(layer(x, name), 0.2))

    x = F.leaky_relu(layer(norm(latents), "dense", dense_gain), 0.2)
    x = activated(norm(x) if norms_dense else x, "conv")
    below = activated(activated(x, "up1"), "conv1")
    x = activated(activated(below, "up2"), "conv2")
    return share * double(layer(below, "rgb1", rgb_gain)) + (1 - share) * layer(x, "rgb2", rgb_gain)


@contextmanager
def pretended_class(module, name):
    """A class that pickles as `module.name`, of a program that is not here."""
    made = [".".join(module.split(".")[: n + 1]) for n in range(module.count(".") + 1)]
    for part in made:
        sys.modules[part] = ModuleType(part)
    kind = type(name, (), {"__module__": module, "__getstate__": lambda self: self.kept})
    setattr(sys.modules[module], name, kind)
    try:
        yield kind
    finally:
        for part in made:
            del sys.modules[part]


def official_variables(layers, ours, names, fused):
    """Names and arrays as in TensorFlow: dense [I, O], convolutions [H, W, I, O], transposed ones [H, W, O, I]."""
    for our_name, name in zip(ours, names, strict=True):
        weight, bias = layers[our_name]
        up, down = fused and our_name.startswith("up"), fused and our_name.startswith("down")
        order = (1, 0) if weight.ndim == 2 else (2, 3, 0, 1) if up else (2, 3, 1, 0)
        there = f"{name}_up" if up else f"{name}_down" if down else name
        yield f"{there}/weight", np.ascontiguousarray(weight.permute(order))
        yield f"{there}/bias", bias.numpy()


def official_pickle(path, layers, d_layers, *, detail, fused, labels):
    """(G, D, averaged G); G has the negative weights of the averaged G."""
    averaged = dict(official_variables(layers, LAYERS, OFFICIAL, fused))
    d = dict(official_variables(d_layers, LAYERS_D, OFFICIAL_D, fused))
    sizes = {"resolution": 16, "num_channels": CHANNELS, "label_size": labels, "fused_scale": fused}
    sizes["mbstd_group_size"] = 8
    with pretended_class("tfutil", "Network") as network:
        networks = []
        for function, variables in (
            ("G", {name: -value for name, value in averaged.items()}),
            ("D", d),
            ("G", averaged),
        ):
            one = network()
            one.kept = {
                "static_kwargs": sizes,
                "build_module_src": "raise SystemExit('executed')",
                "build_func_name": f"{function}_paper",
                "variables": [("lod", np.float32(detail)), *variables.items()],
            }
            networks.append(one)
        path.write_bytes(pickle.dumps(tuple(networks), protocol=2))


def state_of(layers, names):
    """The state dict of G or D of a PyTorch program, whose names for the layers are `names`.

    pro-gan-pth has convolutions for D's dense layers, and begins G with a transposed one: [Z, C, 4, 4].
    """
    state = OrderedDict()
    for ours, name in zip(LAYERS if "up1" in layers else LAYERS_D, names, strict=True):
        weight, state[f"{name}.bias"] = layers[ours]
        if names is PRO_GAN and ours == "dense":
            weight = weight.view(-1, 4, 4, LATENTS).permute(3, 0, 1, 2)
        if names is PRO_GAN_D and ours in ("dense", "score"):
            side = 4 if ours == "dense" else 1
            weight = weight.unflatten(1, (-1, side, side))
        state[f"{name}.weight"] = weight
    return state
