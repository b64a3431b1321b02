"""Generators of pytorch_GAN_zoo: state dicts of its GNet, alone or in a checkpoint with its configuration."""

from collections.abc import Mapping
from math import sqrt
from typing import Any

from pggan.checkpoints.generator_file import LoadedGenerator
from pggan.core.architecture import Stem
from pggan.interop.importers.assemble import HE_TO_RGB, HE_TO_STEM, Arrays, assemble, tensors_of, widths_to_architecture
from pggan.interop.importers.restricted_pickle import Instance

# Of its configuration; with other losses, its generators end in tanh.
FIXED = {"leakyReluLeak": 0.2, "perChannelNormalization": True, "equalizedlR": True, "lossCriterion": "WGANGP"}


def _state(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The averaged generator's state dict, else the generator's."""
    return next((content[name] for name in ("avgG", "netG") if isinstance(content.get(name), Mapping)), content)


def is_gan_zoo(content: object) -> bool:
    """Whether `content` has the names of pytorch_GAN_zoo's generator."""
    return isinstance(content, Mapping) and any(str(name).startswith("formatLayer.") for name in _state(content))


def from_gan_zoo(content: Any) -> LoadedGenerator:
    """The generator in `content`; raises ValueError, KeyError or TypeError unless it is like those of this program."""
    config = content.get("config")
    settings = config.state if isinstance(config, Instance) and isinstance(config.state, dict) else {}
    for name, value in FIXED.items():
        if settings.get(name, value) != value:
            raise ValueError(f"it was built with {name}={settings[name]}, which this program has not")
    theirs = tensors_of(_state(content))
    scales = sum(name.startswith("toRGBLayers.") and name.endswith(".weight") for name in theirs)
    rgb = [theirs[f"toRGBLayers.{number}.weight"] for number in range(scales)]
    architecture = widths_to_architecture(
        [weight.shape[1] for weight in rgb],
        channels=rgb[0].shape[0],
        latent_size=theirs["formatLayer.weight"].shape[1],
        stem=Stem.unit_bias,
    )
    found: Arrays = {}
    _take(found, "stem.dense", theirs, "formatLayer", HE_TO_STEM)
    _take(found, "stem.conv", theirs, "groupScale0.0")
    for number, level in enumerate(architecture.resolutions):
        if number:
            _take(found, f"blocks.{level}.up_conv", theirs, f"scaleLayers.{number - 1}.0")
            _take(found, f"blocks.{level}.conv", theirs, f"scaleLayers.{number - 1}.1")
        _take(found, f"to_rgb.{level}", theirs, f"toRGBLayers.{number}", HE_TO_RGB)
    return assemble(architecture, found, architecture.resolution, 1.0 - float(settings.get("alpha", 0)))  # theirs: old


def _take(found: Arrays, ours: str, theirs: Arrays, name: str, gain: float = 1.0) -> None:
    """Add a layer to `found`.  Theirs scale the bias as well as the weight, always with He's gain."""
    weight = theirs[f"{name}.weight"]
    found[f"{ours}.weight"] = weight * gain
    found[f"{ours}.bias"] = theirs[f"{name}.bias"] * sqrt(2.0 / weight[0].size)
