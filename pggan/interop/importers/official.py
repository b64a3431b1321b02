"""Generators of the official implementation (TensorFlow 1): pickles of (G, D, averaged G)."""

from typing import Any

import numpy as np
import numpy.typing as npt

from pggan.checkpoints.generator_file import LoadedGenerator
from pggan.core.architecture import Architecture
from pggan.interop.importers.assemble import Arrays, assemble
from pggan.interop.importers.restricted_pickle import Array, PickledNetwork

# What the function that builds a generator can be told beyond its sizes, and the one value that we have, too.
FIXED = {
    "normalize_latents": True,
    "use_wscale": True,
    "use_pixelnorm": True,
    "pixelnorm_epsilon": 1e-8,
    "use_leakyrelu": True,
}


def is_official(content: object) -> bool:
    """Whether `content` is a network of the official implementation, or several."""
    networks = content if isinstance(content, tuple | list) else [content]
    return bool(networks) and all(isinstance(one, PickledNetwork) for one in networks)


def from_official(content: Any) -> LoadedGenerator:
    """The averaged generator, or the only one; raises ValueError, KeyError or TypeError unless it is like ours."""
    network = content[-1] if isinstance(content, tuple | list) else content
    settings, variables = network.state["static_kwargs"], dict(network.state["variables"])
    for name, value in FIXED.items():
        if settings.get(name, value) != value:
            raise ValueError(f"it was built with {name}={settings[name]}, which this program has not")
    values = {name: value.value if isinstance(value, Array) else np.asarray(value) for name, value in variables.items()}
    num_classes = int(settings.get("label_size", 0))
    architecture = Architecture.from_plain(
        {
            "resolution": int(settings.get("resolution", 32)),
            "channels": int(settings.get("num_channels", 1)),
            "num_classes": num_classes,
            "latent_size": values["4x4/Dense/weight"].shape[0] - num_classes,
            "fmap_base": int(settings.get("fmap_base", 8192)),
            "fmap_decay": float(settings.get("fmap_decay", 1.0)),
            "fmap_max": int(settings.get("fmap_max", 512)),
            "stddev_group": 4,  # of a discriminator
            "resampling": "fused" if settings.get("fused_scale", True) else "unfused",
        }
    )
    # The level of detail counts from 0 at the final resolution, and fractions blend with the level below.
    detail = min(max(float(values["lod"]), 0.0), float(len(architecture.resolutions) - 1))
    resolution = architecture.resolution >> int(detail)
    return assemble(architecture, _renamed(values), resolution, 1.0 - detail % 1)


def _renamed(values: Arrays) -> Arrays:
    """Variables under our names and in our layout."""
    found = {
        "stem.dense.weight": values["4x4/Dense/weight"].T,
        "stem.dense.bias": values["4x4/Dense/bias"],
        "stem.conv.weight": _from_hwio(values["4x4/Conv/weight"]),
        "stem.conv.bias": values["4x4/Conv/bias"],
    }
    levels = sorted({int(name.split("x")[0]) for name in values if name[0].isdigit()})
    for level in levels[1:]:
        ours, theirs = f"blocks.{level}", f"{level}x{level}"
        if f"{theirs}/Conv0_up/weight" in values:  # a transposed convolution: outputs first, and mirrored
            kernel = values[f"{theirs}/Conv0_up/weight"].transpose(2, 3, 0, 1)[:, :, ::-1, ::-1]
            bias = values[f"{theirs}/Conv0_up/bias"]
        else:
            kernel, bias = _from_hwio(values[f"{theirs}/Conv0/weight"]), values[f"{theirs}/Conv0/bias"]
        found |= {f"{ours}.up_conv.weight": kernel, f"{ours}.up_conv.bias": bias}
        found |= {f"{ours}.conv.weight": _from_hwio(values[f"{theirs}/Conv1/weight"])}
        found |= {f"{ours}.conv.bias": values[f"{theirs}/Conv1/bias"]}
    for detail, level in enumerate(reversed(levels)):
        found[f"to_rgb.{level}.weight"] = _from_hwio(values[f"ToRGB_lod{detail}/weight"])
        found[f"to_rgb.{level}.bias"] = values[f"ToRGB_lod{detail}/bias"]
    return found


def _from_hwio(kernel: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A kernel [H, W, I, O] as [O, I, H, W]."""
    return kernel.transpose(3, 2, 0, 1)
