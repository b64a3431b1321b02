"""`pggan import`: a generator of another program as a generator file of this one.

All of these programs scale their weights at run time by a gain / sqrt(fan-in); where the gain differs from ours, the
weight takes it.  Biases of theirs that are scaled, too, take that.
"""

from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.config.commands import ImportConfig
from pggan.core.architecture import Architecture, Resampling, Stem
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.interop.restricted_pickle import Instance, PickledNetwork, read_foreign_file
from pggan.networks.networks import Generator, count_parameters
from pggan.sampling.files import check_output

Arrays = dict[str, npt.NDArray[Any]]
HE_TO_STEM = 4.0  # our stem has a quarter of He's gain
HE_TO_RGB = sqrt(2.0)  # our layers to RGB have gain 1
# Of the settings of other programs, the one value that we have, too.
FIXED = {
    **{"normalize_latents": True, "use_wscale": True, "use_pixelnorm": True, "use_leakyrelu": True},
    "pixelnorm_epsilon": 1e-8,
    # pytorch_GAN_zoo; with other losses, its generators end in tanh.
    **{"leakyReluLeak": 0.2, "perChannelNormalization": True, "equalizedlR": True, "lossCriterion": "WGANGP"},
}


def run(config: ImportConfig) -> int:
    """Import as `config` says; returns the exit code."""
    source = Path(config.source)
    if not source.is_file():
        raise UserError(f"source={source} is no file.", "Name a .pkl of the official networks, or a file of PyTorch.")
    out = check_output(config.out, (".safetensors",))
    program, generator = read_foreign(source)
    save_generator(generator, out)
    size, parameters = generator.resolution, count_parameters(generator.network)
    print(f"{out}: {size}x{size}, alpha {generator.alpha:g}, {parameters:,} parameters, of {program}")
    print(next_command("sample", "seeds=0-63", run=out))
    return 0


def read_foreign(path: Path) -> tuple[str, LoadedGenerator]:
    """The program that trained the generator in a file, and the generator; raises UserError for any other file."""
    try:
        content = read_foreign_file(path)
        networks = content if isinstance(content, tuple | list) else [content]
        if networks and all(isinstance(one, PickledNetwork) for one in networks):
            return "the official implementation", from_official(networks[-1])  # the averaged one
        saved = next((content[name] for name in ("shadow_generator", "generator") if name in content), content)
        if any(str(name).startswith("rgb_converters.") for name in saved.get("state_dict", ())):
            return "pro-gan-pth", from_pro_gan_pth(saved)
        state = next((content[name] for name in ("avgG", "netG") if isinstance(content.get(name), Mapping)), content)
        if any(str(name).startswith("formatLayer.") for name in state):
            return "pytorch_GAN_zoo", from_gan_zoo(state, content.get("config"))
        raise ValueError("it has the names of none of these")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        remedy = "Give a generator of the official implementation, pytorch_GAN_zoo or pro-gan-pth."
        raise UserError(f"{path} can't be imported: {reason}.", remedy) from error


def from_official(network: PickledNetwork) -> LoadedGenerator:
    """A generator of the official implementation (TensorFlow 1)."""
    settings, values = network.state["static_kwargs"], {k: np.asarray(v) for k, v in network.state["variables"]}
    require_ours(settings)
    num_classes, dense = int(settings.get("label_size", 0)), values["4x4/Dense/weight"]
    details = sum(name.startswith("ToRGB_lod") and name.endswith("/weight") for name in values)
    rgb = [values[f"ToRGB_lod{detail}/weight"][0, 0].T for detail in reversed(range(details))]
    architecture = architecture_of(rgb, len(dense) - num_classes, Stem.official, num_classes)
    found = {"stem.dense.weight": dense.T, "stem.dense.bias": values["4x4/Dense/bias"]}

    def take(ours: str, theirs: str) -> None:  # their kernels are [H, W, I, O]
        found[f"{ours}.weight"] = values[f"{theirs}/weight"].transpose(3, 2, 0, 1)
        found[f"{ours}.bias"] = values[f"{theirs}/bias"]

    take("stem.conv", "4x4/Conv")
    for level in architecture.resolutions[1:]:
        ours, theirs = f"blocks.{level}", f"{level}x{level}"
        if f"{theirs}/Conv0_up/weight" in values:  # a transposed convolution: outputs first, and mirrored
            kernel = values[f"{theirs}/Conv0_up/weight"].transpose(2, 3, 0, 1)[:, :, ::-1, ::-1]
            found |= {f"{ours}.up_conv.weight": kernel, f"{ours}.up_conv.bias": values[f"{theirs}/Conv0_up/bias"]}
        else:
            take(f"{ours}.up_conv", f"{theirs}/Conv0")
        take(f"{ours}.conv", f"{theirs}/Conv1")
    for detail, level in enumerate(reversed(architecture.resolutions)):
        take(f"to_rgb.{level}", f"ToRGB_lod{detail}")
    # The level of detail counts from 0 at the final resolution, and fractions blend with the level below.
    detail_now = min(max(float(values["lod"]), 0.0), details - 1.0)
    return assemble(architecture, found, architecture.resolution >> int(detail_now), 1.0 - detail_now % 1)


def from_gan_zoo(state: Mapping[str, Any], config: Any) -> LoadedGenerator:
    """A generator of pytorch_GAN_zoo: the state dict of its GNet, and the configuration where it is there."""
    settings = config.state if isinstance(config, Instance) and isinstance(config.state, dict) else {}
    require_ours(settings)
    theirs, found = tensors_of(state), Arrays()
    rgb, dense = weights_of(theirs, "toRGBLayers"), theirs["formatLayer.weight"]
    architecture = architecture_of(rgb, dense.shape[1], Stem.unit_bias)

    def take(ours: str, name: str, gain: float = 1.0) -> None:  # theirs scale the bias as well as the weight
        weight = theirs[f"{name}.weight"]
        found[f"{ours}.weight"] = weight * gain
        found[f"{ours}.bias"] = theirs[f"{name}.bias"] * sqrt(2.0 / weight[0].size)

    take("stem.dense", "formatLayer", HE_TO_STEM)
    take("stem.conv", "groupScale0.0")
    for number, level in enumerate(architecture.resolutions):
        if number:
            take(f"blocks.{level}.up_conv", f"scaleLayers.{number - 1}.0")
            take(f"blocks.{level}.conv", f"scaleLayers.{number - 1}.1")
        take(f"to_rgb.{level}", f"toRGBLayers.{number}", HE_TO_RGB)
    return assemble(architecture, found, architecture.resolution, 1.0 - float(settings.get("alpha", 0)))  # theirs: old


def from_pro_gan_pth(saved: Mapping[str, Any]) -> LoadedGenerator:
    """A generator of pro-gan-pth 3: `conf` and `state_dict`.

    It takes latents as they are, and its programs normalise them before; ours does so itself.
    """
    theirs, found = tensors_of(saved["state_dict"]), Arrays()
    scaled = bool(saved.get("conf", {}).get("use_eql", True))  # else its weights are used as they are
    dense = theirs["layers.0.conv_1.weight"]  # of a transposed convolution of one pixel: [Z, C, 4, 4]
    architecture = architecture_of(weights_of(theirs, "rgb_converters"), len(dense), Stem.one_norm)

    def take(ours: str, name: str, gain: float = 1.0) -> None:
        weight = theirs[f"{name}.weight"]
        found[f"{ours}.weight"] = weight * (gain * (1.0 if scaled else sqrt(weight[0].size / 2.0)))
        found[f"{ours}.bias"] = theirs[f"{name}.bias"]

    gain = HE_TO_STEM * (1.0 if scaled else sqrt(len(dense) / 2.0))
    found["stem.dense.weight"] = dense.transpose(1, 2, 3, 0).reshape(-1, len(dense)) * gain
    found["stem.dense.bias"] = theirs["layers.0.conv_1.bias"]
    for number, level in enumerate(architecture.resolutions):
        if number:
            take(f"blocks.{level}.up_conv", f"layers.{number}.conv_1")
        take(f"blocks.{level}.conv" if number else "stem.conv", f"layers.{number}.conv_2")
        take(f"to_rgb.{level}", f"rgb_converters.{number}", HE_TO_RGB)
    return assemble(architecture, found, architecture.resolution, 1.0)


def require_ours(settings: Mapping[str, Any]) -> None:
    """Raise ValueError where a setting of another program has a value that this one has not."""
    for name, value in FIXED.items():
        if settings.get(name, value) != value:
            raise ValueError(f"it was built with {name}={settings[name]}, which this program has not")


def tensors_of(state: Mapping[str, Any]) -> Arrays:
    """The tensors of a state dict, without the name 'module' that wrappers add."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {
        ".".join(part for part in name.split(".") if part != "module"): value.detach().numpy()
        for name, value in tensors.items()
    }


def weights_of(theirs: Arrays, layers: str) -> list[npt.NDArray[Any]]:
    """The weights of numbered layers, in their order."""
    count = sum(name.startswith(f"{layers}.") and name.endswith(".weight") for name in theirs)
    return [theirs[f"{layers}.{number}.weight"] for number in range(count)]


def architecture_of(rgb: list[npt.NDArray[Any]], latent_size: int, stem: Stem, num_classes: int = 0) -> Architecture:
    """The architecture with layers to RGB [C, I, …], from 4x4 up; raises ValueError where no formula gives the I."""
    widths = [weight.shape[1] for weight in rgb]
    for stage, width in enumerate(widths, 1):
        architecture = Architecture(
            resolution=2 ** (len(widths) + 1),
            channels=len(rgb[0]),
            num_classes=num_classes,
            latent_size=latent_size,
            fmap_base=width << stage,
            fmap_decay=1.0,
            fmap_max=max(widths),
            stddev_group=4,  # of a discriminator
            resampling=Resampling.fused,  # in a generator, both kinds compute the same
            stem=stem,
        )
        if [architecture.width(resolution) for resolution in architecture.resolutions] == widths:
            return architecture
    raise ValueError(f"its layers have {widths} feature maps, which halve in no regular way")


def assemble(architecture: Architecture, arrays: Arrays, resolution: int, alpha: float) -> LoadedGenerator:
    """The generator with `arrays` under our names; raises ValueError or RuntimeError unless they fit and are finite."""
    state = {name: torch.from_numpy(np.array(array, np.float32, order="C")) for name, array in arrays.items()}
    if name := next((name for name, tensor in state.items() if not tensor.isfinite().all()), None):
        raise ValueError(f"{name} has a number that is not finite")
    network = Generator(architecture)
    network.load_state_dict(state)
    return LoadedGenerator(network.requires_grad_(False), resolution, alpha, 0)
