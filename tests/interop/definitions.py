"""Forward passes of the generators of other programs, written from their definitions, and files as they write them.

Random weights; no code of these programs is needed.
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


def norm(x):
    return x / (x.square().mean(1, keepdim=True) + 1e-8).sqrt()


def he(weight, gain=HE):
    return weight * gain / sqrt(weight[0].numel())


def lrelu(x):
    return F.leaky_relu(x, 0.2)


def double(x):
    return x.repeat_interleave(2, 2).repeat_interleave(2, 3)


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


# --- the official implementation, in TensorFlow's layouts: dense [I, O], convolutions [H, W, I, O]


def official_variables(*, fused, labels, random):
    shapes = {"4x4/Dense/weight": (LATENTS + labels, WIDTHS[0] * 16), "4x4/Dense/bias": (WIDTHS[0],)}
    shapes |= {"4x4/Conv/weight": (3, 3, WIDTHS[0], WIDTHS[0]), "4x4/Conv/bias": (WIDTHS[0],)}
    for number, (inner, outer) in enumerate(pairwise(WIDTHS)):
        name = f"{8 << number}x{8 << number}"
        up = ("Conv0_up", (3, 3, outer, inner)) if fused else ("Conv0", (3, 3, inner, outer))
        shapes |= {f"{name}/{up[0]}/weight": up[1], f"{name}/{up[0]}/bias": (outer,)}
        shapes |= {f"{name}/Conv1/weight": (3, 3, outer, outer), f"{name}/Conv1/bias": (outer,)}
    for detail, width in enumerate(reversed(WIDTHS)):
        shapes |= {f"ToRGB_lod{detail}/weight": (1, 1, width, CHANNELS), f"ToRGB_lod{detail}/bias": (CHANNELS,)}
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def official_pickle(path, variables, *, detail, fused, labels, **settings):
    """(G, D, averaged G); the first two have other weights."""
    sizes = {"resolution": 16, "num_channels": CHANNELS, "label_size": labels, "fused_scale": fused}
    sizes |= {"fmap_base": 32, "fmap_max": 8}
    with pretended_class("tfutil", "Network") as network:
        networks = []
        for sign in (-1, 0, 1):
            one = network()
            values = [("lod", np.float32(detail)), *((name, sign * value) for name, value in variables.items())]
            one.kept = {
                "version": 2,
                "name": "G",
                "static_kwargs": sizes | settings,
                "build_module_src": "raise SystemExit('executed')",
                "build_func_name": "G_paper",
                "variables": values,
            }
            networks.append(one)
        path.write_bytes(pickle.dumps(tuple(networks), protocol=2))


def official_images(variables, latents, labels, detail):
    """The linear structure: all levels, each enlarged to the next and blended by what is left of `detail`."""
    v = {name: torch.from_numpy(value) for name, value in variables.items()}

    def bias(x, name):
        return x + v[f"{name}/bias"].view(1, -1, 1, 1)

    def conv(x, name, gain=HE):
        kernel = v[f"{name}/weight"]
        kernel = kernel * (gain / sqrt(kernel[..., 0].numel()))
        return bias(F.conv2d(x, kernel.permute(3, 2, 0, 1), padding=kernel.shape[0] // 2), name)

    def up(x, name):
        if f"{name}/Conv0_up/weight" not in v:
            return conv(double(x), f"{name}/Conv0")
        kernel = v[f"{name}/Conv0_up/weight"]  # [H, W, O, I]
        kernel = F.pad((kernel * sqrt(2 / (9 * x.shape[1]))).permute(3, 2, 0, 1), (1, 1, 1, 1))
        kernel = kernel[..., 1:, 1:] + kernel[..., :-1, 1:] + kernel[..., 1:, :-1] + kernel[..., :-1, :-1]
        return bias(F.conv_transpose2d(x, kernel, stride=2, padding=1), f"{name}/Conv0_up")

    x = norm(latents if labels is None else torch.cat([latents, labels], 1))
    x = x @ (v["4x4/Dense/weight"] * (sqrt(2) / 4 / sqrt(x.shape[1])))
    x = norm(lrelu(bias(x.reshape(len(x), -1, 4, 4), "4x4/Dense")))
    x = norm(lrelu(conv(x, "4x4/Conv")))
    last = len(WIDTHS) - 1
    images = conv(x, f"ToRGB_lod{last}", gain=1)
    for number in range(1, len(WIDTHS)):
        name = f"{4 << number}x{4 << number}"
        x = norm(lrelu(up(x, name)))
        x = norm(lrelu(conv(x, f"{name}/Conv1")))
        new = conv(x, f"ToRGB_lod{last - number}", gain=1)
        share = min(max(detail - (last - number), 0.0), 1.0)
        images = new + (double(images) - new) * share
    return images


# --- pytorch_GAN_zoo: He's gain everywhere, on the result with its bias; a bias per number of the dense layer


def zoo_state(random):
    shapes = {"formatLayer": (16 * WIDTHS[0], LATENTS), "groupScale0.0": (WIDTHS[0], WIDTHS[0], 3, 3)}
    for number, (inner, outer) in enumerate(pairwise(WIDTHS)):
        shapes |= {f"scaleLayers.{number}.0": (outer, inner, 3, 3), f"scaleLayers.{number}.1": (outer, outer, 3, 3)}
    shapes |= {f"toRGBLayers.{number}": (CHANNELS, width, 1, 1) for number, width in enumerate(WIDTHS)}
    return state_of(shapes, random)


def state_of(shapes, random):
    """A weight of each shape, and its bias; the outputs of a transposed convolution come second."""
    state = OrderedDict()
    for name, shape in shapes.items():
        state[f"{name}.weight"] = torch.randn(shape, generator=random)
        state[f"{name}.bias"] = torch.randn(shape[1 if name == "layers.0.conv_1" else 0], generator=random)
    return state


def zoo_images(state, latents, old_share):
    def layer(x, name):
        weight, bias = state[f"{name}.weight"], state[f"{name}.bias"]
        result = (
            F.linear(x, weight, bias) if weight.ndim == 2 else F.conv2d(x, weight, bias, padding=weight.shape[2] // 2)
        )
        return result * sqrt(2 / weight[0].numel())

    x = lrelu(layer(norm(latents), "formatLayer"))
    x = norm(x.view(len(x), -1, 4, 4))
    x = previous = norm(lrelu(layer(x, "groupScale0.0")))
    for number in range(len(WIDTHS) - 1):
        previous = x
        x = norm(lrelu(layer(double(x), f"scaleLayers.{number}.0")))
        x = norm(lrelu(layer(x, f"scaleLayers.{number}.1")))
    new, old = layer(x, f"toRGBLayers.{len(WIDTHS) - 1}"), layer(previous, f"toRGBLayers.{len(WIDTHS) - 2}")
    return old_share * double(old) + (1 - old_share) * new


# --- pro-gan-pth: latents normalised by the caller, a transposed convolution first, and one norm in the first block


def pro_gan_state(random):
    shapes = {"layers.0.conv_1": (LATENTS, WIDTHS[0], 4, 4), "layers.0.conv_2": (WIDTHS[0], WIDTHS[0], 3, 3)}
    for number, (inner, outer) in enumerate(pairwise(WIDTHS), 1):
        shapes |= {f"layers.{number}.conv_1": (outer, inner, 3, 3), f"layers.{number}.conv_2": (outer, outer, 3, 3)}
    shapes |= {f"rgb_converters.{number}": (CHANNELS, width, 1, 1) for number, width in enumerate(WIDTHS)}
    return state_of(shapes, random)


def pro_gan_images(state, latents):
    def conv(x, name):
        weight = state[f"{name}.weight"]
        return F.conv2d(x, he(weight), state[f"{name}.bias"], padding=weight.shape[2] // 2)

    x = latents / latents.norm(dim=1, keepdim=True) * sqrt(LATENTS)
    weight = state["layers.0.conv_1.weight"] * sqrt(2 / LATENTS)
    x = lrelu(F.conv_transpose2d(x[:, :, None, None], weight, state["layers.0.conv_1.bias"]))
    x = norm(lrelu(conv(x, "layers.0.conv_2")))
    for number in range(1, len(WIDTHS)):
        x = norm(lrelu(conv(double(x), f"layers.{number}.conv_1")))
        x = norm(lrelu(conv(x, f"layers.{number}.conv_2")))
    return conv(x, f"rgb_converters.{len(WIDTHS) - 1}")
