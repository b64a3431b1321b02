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

LATENTS, CHANNELS = 6, 3
HE = sqrt(2)  # He's gain
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
PRO_GAN = (
    *(f"layers.{number}.{conv}" for number in range(3) for conv in ("conv_1", "conv_2")),
    *("rgb_converters.0", "rgb_converters.1", "rgb_converters.2"),
)


def layers_of(labels=0, dense_biases=WIDTHS[0]):
    """Random layers; the dense one has a bias per feature map, or per number."""
    random = torch.Generator().manual_seed(labels)
    shapes = {"dense": (16 * WIDTHS[0], LATENTS + labels), "conv": (WIDTHS[0], WIDTHS[0], 3, 3)}
    for number, (inner, outer) in enumerate(pairwise(WIDTHS), 1):
        shapes |= {f"up{number}": (outer, inner, 3, 3), f"conv{number}": (outer, outer, 3, 3)}
    shapes |= {f"rgb{number}": (CHANNELS, width, 1, 1) for number, width in enumerate(WIDTHS)}
    biases = {name: dense_biases if name == "dense" else shape[0] for name, shape in shapes.items()}
    return {
        name: (torch.randn(shape, generator=random), torch.randn(biases[name], generator=random))
        for name, shape in shapes.items()
    }


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


def official_pickle(path, layers, *, detail, fused, labels, **settings):
    """(G, D, averaged G); the first two have other weights.  TensorFlow has dense [I, O], convolutions [H, W, I, O]."""
    variables = {}
    for ours, name in zip(LAYERS, OFFICIAL, strict=True):
        weight, bias = layers[ours]
        up = fused and ours.startswith("up")  # a transposed convolution: [H, W, O, I]
        order = (1, 0) if weight.ndim == 2 else (2, 3, 0, 1) if up else (2, 3, 1, 0)
        there = f"{name}_up" if up else name
        variables |= {f"{there}/weight": np.ascontiguousarray(weight.permute(order)), f"{there}/bias": bias.numpy()}
    sizes = {"resolution": 16, "num_channels": CHANNELS, "label_size": labels, "fused_scale": fused}
    with pretended_class("tfutil", "Network") as network:
        networks = []
        for sign in (-1, 0, 1):
            one = network()
            values = [("lod", np.float32(detail)), *((name, sign * value) for name, value in variables.items())]
            one.kept = {
                "static_kwargs": sizes | settings,
                "build_module_src": "raise SystemExit('executed')",
                "build_func_name": "G_paper",
                "variables": values,
            }
            networks.append(one)
        path.write_bytes(pickle.dumps(tuple(networks), protocol=2))


def state_of(layers, names):
    """The state dict of a PyTorch program; pro-gan-pth begins with a transposed convolution: [Z, C, 4, 4]."""
    state = OrderedDict()
    for ours, name in zip(LAYERS, names, strict=True):
        weight, state[f"{name}.bias"] = layers[ours]
        is_transposed = ours == "dense" and names is PRO_GAN
        state[f"{name}.weight"] = weight.view(-1, 4, 4, LATENTS).permute(3, 0, 1, 2) if is_transposed else weight
    return state
