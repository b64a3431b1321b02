"""Generators of pro-gan-pth 3 (pro_gan_pytorch): `conf` and `state_dict` of its Generator."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

from pggan.checkpoints.generator_file import LoadedGenerator
from pggan.core.architecture import Stem
from pggan.interop.importers.assemble import HE_TO_RGB, HE_TO_STEM, Arrays, assemble, tensors_of, widths_to_architecture


def _saved(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The averaged generator, else the generator."""
    return next((content[name] for name in ("shadow_generator", "generator") if name in content), content)


def is_pro_gan_pth(content: object) -> bool:
    """Whether `content` has the names of its generator."""
    if not isinstance(content, Mapping) or not isinstance(saved := _saved(content), Mapping):
        return False
    state = saved.get("state_dict")
    return isinstance(state, Mapping) and any(str(name).startswith("rgb_converters.") for name in state)


def from_pro_gan_pth(content: Any) -> LoadedGenerator:
    """The generator; raises ValueError, KeyError or TypeError unless it is like ours.

    It takes latents as they are, and its programs normalise them before; ours does so itself.
    """
    saved = _saved(content)
    theirs = tensors_of(saved["state_dict"])
    scaled = bool(saved.get("conf", {}).get("use_eql", True))  # else its weights are used as they are
    count = sum(name.startswith("rgb_converters.") and name.endswith(".weight") for name in theirs)
    rgb = [theirs[f"rgb_converters.{number}.weight"] for number in range(count)]
    dense = theirs["layers.0.conv_1.weight"]  # of a transposed convolution of one pixel: [Z, C, 4, 4]
    architecture = widths_to_architecture(
        [weight.shape[1] for weight in rgb], channels=rgb[0].shape[0], latent_size=len(dense), stem=Stem.one_norm
    )
    found: Arrays = {}
    scale = 1.0 if scaled else sqrt(len(dense) / 2.0)
    found["stem.dense.weight"] = dense.transpose(1, 2, 3, 0).reshape(-1, len(dense)) * (HE_TO_STEM * scale)
    found["stem.dense.bias"] = theirs["layers.0.conv_1.bias"]
    for number, level in enumerate(architecture.resolutions):
        names = {"conv_2": "stem.conv"}
        if number:
            names = {"conv_1": f"blocks.{level}.up_conv", "conv_2": f"blocks.{level}.conv"}
        for name, ours in names.items():
            _take(found, ours, theirs, f"layers.{number}.{name}", 1.0, scaled=scaled)
        _take(found, f"to_rgb.{level}", theirs, f"rgb_converters.{number}", HE_TO_RGB, scaled=scaled)
    return assemble(architecture, found, architecture.resolution, 1.0)


def _take(found: Arrays, ours: str, theirs: Arrays, name: str, gain: float, *, scaled: bool) -> None:
    weight = theirs[f"{name}.weight"]
    scale = 1.0 if scaled else sqrt(weight[0].size / 2.0)
    found[f"{ours}.weight"] = weight * (gain * scale)
    found[f"{ours}.bias"] = theirs[f"{name}.bias"]
