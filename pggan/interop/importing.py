"""`pggan import` converts a generator that another program has trained into a generator file of pggan.

These programs and pggan scale weights by gain / sqrt(fan-in) at run time (equalized learning rate).  Where the gains
differ, the import multiplies weights by the ratio of gains.  pytorch_GAN_zoo also scales biases at run time; pggan does
not, so the import multiplies these biases by pytorch_GAN_zoo's scale.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.config.commands import ImportConfig
from pggan.core.architecture import MIN_RESOLUTION, Architecture, Resampling, Stem
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.interop.restricted_pickle import Instance, PickledNetwork, read_foreign_file
from pggan.networks.networks import Generator, count_parameters
from pggan.sampling.files import check_output

Array = npt.NDArray[Any]
# Layer names in pggan and other programs.  4x4 has `number` 0; the final level has `detail` 0; `below` is number - 1.
OURS = ("stem.dense", "stem.conv", "blocks.{side}.up_conv", "blocks.{side}.conv", "to_rgb.{side}")
OFFICIAL = ("4x4/Dense", "4x4/Conv", "{side}x{side}/Conv0", "{side}x{side}/Conv1", "ToRGB_lod{detail}")
GAN_ZOO = ("formatLayer", "groupScale0.0", "scaleLayers.{below}.0", "scaleLayers.{below}.1", "toRGBLayers.{number}")
PRO_GAN = (
    "layers.0.conv_1",
    "layers.0.conv_2",
    "layers.{number}.conv_1",
    "layers.{number}.conv_2",
    "rgb_converters.{number}",
)
# For each layer in OURS, the ratio of other programs' gain to pggan's gain: 4 for stem.dense, sqrt(2) for to_rgb.
GAINS = (4.0, 1.0, 1.0, 1.0, sqrt(2.0))
# Names of other programs' settings, each with the only value that pggan's networks support.
FIXED = {
    **{"normalize_latents": True, "use_wscale": True, "use_pixelnorm": True, "use_leakyrelu": True},
    "pixelnorm_epsilon": 1e-8,
    # With a loss other than WGANGP, generators of pytorch_GAN_zoo end in tanh, which pggan's generators lack.
    **{"leakyReluLeak": 0.2, "perChannelNormalization": True, "equalizedlR": True, "lossCriterion": "WGANGP"},
    "use_eql": True,  # equalized learning rate in pro-gan-pth
}


def run(config: ImportConfig) -> int:
    """Import the generator file that `config` names; returns the exit code."""
    source = Path(config.source)
    if not source.is_file():
        raise UserError(f"source={source} is no file.", "Name a .pkl file of the official networks, or a PyTorch file.")
    out = check_output(config.out, (".safetensors",))
    program, generator = read_foreign(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_generator(generator, out)
    size, parameters = generator.resolution, count_parameters(generator.network)
    print(f"{out}: {size}x{size}, alpha {generator.alpha:g}, {parameters:,} parameters, trained by {program}")
    print(next_command("sample", "seeds=0-63", run=out))
    return 0


def read_foreign(path: Path) -> tuple[str, LoadedGenerator]:
    """Read a file of another program; returns that program's name and the generator, or raises UserError."""
    try:
        content = read_foreign_file(path)
        networks = content if isinstance(content, tuple | list) else [content]
        if networks and all(isinstance(one, PickledNetwork) for one in networks):
            return "the official implementation", from_official(networks[-1])  # the file's last network: averaged G
        saved = next((content[name] for name in ("shadow_generator", "generator") if name in content), content)
        if any(str(name).startswith("rgb_converters.") for name in saved.get("state_dict", ())):
            return "pro-gan-pth", from_pro_gan_pth(saved)
        state = next((content[name] for name in ("avgG", "netG") if isinstance(content.get(name), Mapping)), content)
        if any(str(name).startswith("formatLayer.") for name in state):
            return "pytorch_GAN_zoo", from_gan_zoo(state, content.get("config"))
        raise ValueError("its layer names are not those of a known program")
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError) as error:
        reason = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        remedy = "Give a generator of the official implementation, pytorch_GAN_zoo or pro-gan-pth."
        raise UserError(f"{path} can't be imported: {reason}.", remedy) from error


def from_official(network: PickledNetwork) -> LoadedGenerator:
    """Convert a generator of the official implementation (TensorFlow 1)."""
    settings, values = network.state["static_kwargs"], {k: np.asarray(v) for k, v in network.state["variables"]}
    require_ours(settings)

    def layer(name: str) -> tuple[Array, Array]:  # stored weights are [in, out] or [H, W, in, out]
        if f"{name}_up/weight" in values:  # transposed convolutions store mirrored weights [H, W, out, in]
            return values[f"{name}_up/weight"].transpose(2, 3, 0, 1)[:, :, ::-1, ::-1], values[f"{name}_up/bias"]
        return np.moveaxis(values[f"{name}/weight"], (-1, -2), (0, 1)), values[f"{name}/bias"]

    generator = translated(OFFICIAL, values, layer, Stem.official, int(settings.get("label_size", 0)))
    # `lod` (level of detail) is 0 at the final resolution, 1 at half of it, and so on; its fraction is 1 - alpha.
    sides = generator.architecture.resolutions[::-1]
    detail = min(max(float(values["lod"]), 0.0), len(sides) - 1.0)
    return LoadedGenerator(generator, sides[int(detail)], 1.0 - detail % 1, 0)


def from_gan_zoo(state: Mapping[str, Any], config: Any) -> LoadedGenerator:
    """Convert a generator of pytorch_GAN_zoo: the state dict of its GNet, and its configuration if the file has one."""
    settings = config.state if isinstance(config, Instance) and isinstance(config.state, dict) else {}
    require_ours(settings)
    theirs = tensors_of(state)

    def layer(name: str) -> tuple[Array, Array]:  # pytorch_GAN_zoo scales biases like weights at run time
        weight = theirs[f"{name}.weight"]
        return weight, theirs[f"{name}.bias"] * sqrt(2.0 / weight[0].size)

    generator = translated(GAN_ZOO, theirs, layer, Stem.unit_bias)
    alpha = 1.0 - float(settings.get("alpha", 0))  # in pytorch_GAN_zoo, alpha is the weight of the old layers
    return LoadedGenerator(generator, generator.architecture.resolution, alpha, 0)


def from_pro_gan_pth(saved: Mapping[str, Any]) -> LoadedGenerator:
    """Convert a generator of pro-gan-pth 3: a dictionary with `conf` and `state_dict`.

    Scripts of pro-gan-pth normalise latents before they call the generator; pggan's generator normalises them itself.
    """
    require_ours(saved.get("conf", {}))
    theirs = tensors_of(saved["state_dict"])

    def layer(name: str) -> tuple[Array, Array]:
        weight = theirs[f"{name}.weight"]
        if name == PRO_GAN[0]:  # weights [Z, C, 4, 4] of a transposed convolution of a 1x1 input
            weight = weight.transpose(1, 2, 3, 0).reshape(-1, len(weight))
        return weight, theirs[f"{name}.bias"]

    generator = translated(PRO_GAN, theirs, layer, Stem.one_norm)
    return LoadedGenerator(generator, generator.architecture.resolution, 1.0, 0)


def require_ours(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting of another program has a value that pggan's networks do not support."""
    for name, value in FIXED.items():
        if settings.get(name, value) != value:
            raise ValueError(f"it was built with {name}={settings[name]}, which pggan does not support")


def tensors_of(state: Mapping[str, Any]) -> dict[str, Array]:
    """The tensors of a state dict as arrays by name; names lose the part 'module', which DataParallel adds."""
    tensors = {name: value for name, value in state.items() if isinstance(value, torch.Tensor)}
    return {
        ".".join(part for part in name.split(".") if part != "module"): value.detach().numpy()
        for name, value in tensors.items()
    }


def translated(
    names: Sequence[str],
    theirs: Mapping[str, Array],
    layer: Callable[[str], tuple[Array, Array]],
    stem: Stem,
    num_classes: int = 0,
) -> Generator:
    """Build a generator from another program's weights.  `names` are that program's names for the layers in OURS.

    Args: theirs: that program's arrays by name; layer: maps that program's layer name to weight [O, I, …] and bias.
    Raises ValueError, KeyError or RuntimeError if an array is missing, has a wrong shape or is not finite.
    """
    rgb, state = names[-1].partition("{")[0], dict[str, torch.Tensor]()
    count = sum(name.startswith(rgb) and name.endswith("weight") for name in theirs)
    for number in range(count):
        place = {"number": number, "below": number - 1, "detail": count - 1 - number, "side": MIN_RESOLUTION << number}
        for ours, name, gain in zip(OURS, names, GAINS, strict=True):
            if not ours.startswith("stem" if number else "blocks"):
                weight, bias = layer(name.format(**place))
                for kind, array in (("weight", weight * (1.0 if stem is Stem.official else gain)), ("bias", bias)):
                    state[f"{ours}.{kind}".format(**place)] = torch.from_numpy(np.array(array, np.float32, order="C"))
    if name := next((name for name, tensor in state.items() if not tensor.isfinite().all()), ""):
        raise ValueError(f"{name} has a number that is not finite")
    rgb_weights = [state[f"to_rgb.{MIN_RESOLUTION << number}.weight"] for number in range(count)]
    latent_size = state["stem.dense.weight"].shape[1] - num_classes
    network = Generator(architecture_of(rgb_weights, latent_size, stem, num_classes))
    network.load_state_dict(state)
    return network.requires_grad_(False)


def architecture_of(rgb: list[torch.Tensor], latent_size: int, stem: Stem, num_classes: int) -> Architecture:
    """Find the architecture whose to-RGB layers, 4x4 first, have the shapes of `rgb` [C, I, …], or raise ValueError."""
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
            stddev_group=4,  # used by the discriminator only
            resampling=Resampling.fused,  # G is the same with both values of `resampling`; only D differs
            stem=stem,
        )
        if [architecture.width(resolution) for resolution in architecture.resolutions] == widths:
            return architecture
    raise ValueError(f"its layers have {widths} feature maps, which do not halve regularly from level to level")
