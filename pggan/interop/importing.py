"""`pggan import` converts networks of other programs into a generator file of pggan.

All these programs multiply weights by gain / sqrt(fan-in) at run time; the import rescales weights if the gain
differs from pggan's.  pytorch_GAN_zoo also scales biases at run time, so the import stores scaled biases.
"""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from pggan.checkpoints.generator_file import LoadedGenerator, save_generator
from pggan.config.commands import ImportConfig
from pggan.core.architecture import MIN_RESOLUTION, Architecture, Resampling, Stem
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.interop.restricted_pickle import Instance, PickledNetwork, read_foreign_file
from pggan.networks.networks import Discriminator, Generator, count_parameters
from pggan.sampling.files import check_output

Array = npt.NDArray[Any]
# Layer names of G or, in constants ending in _D, of D.  Placeholders: {side} is the layer's resolution.  {number} is 0
# at 4x4, 1 at 8x8 and so on.  {below} is {number} - 1.  {detail} is 0 at the highest resolution, 1 at the next lower.
OURS = ("stem.dense", "stem.conv", "blocks.{side}.up_conv", "blocks.{side}.conv", "to_rgb.{side}")
OFFICIAL = ("4x4/Dense", "4x4/Conv", "{side}x{side}/Conv0", "{side}x{side}/Conv1", "ToRGB_lod{detail}")
GAN_ZOO = ("formatLayer", "groupScale0.0", "scaleLayers.{below}.0", "scaleLayers.{below}.1", "toRGBLayers.{number}")
PRO_GAN_BLOCK = ("layers.{number}.conv_1", "layers.{number}.conv_2")  # at 4x4, too
PRO_GAN = (*PRO_GAN_BLOCK, *PRO_GAN_BLOCK, "rgb_converters.{number}")
OURS_D = (
    *("head.conv", "head.dense", "head.score"),
    *("blocks.{side}.conv", "blocks.{side}.down_conv", "from_rgb.{side}"),
)
OFFICIAL_D = (
    *("4x4/Conv", "4x4/Dense0", "4x4/Dense1"),
    *("{side}x{side}/Conv0", "{side}x{side}/Conv1", "FromRGB_lod{detail}"),
)
GAN_ZOO_D = (
    *("groupScaleZero.0", "groupScaleZero.1", "decisionLayer"),
    *("scaleLayers.{below}.0", "scaleLayers.{below}.1", "fromRGBLayers.{number}"),
)
PRO_GAN_D = (
    *("layers.{detail}.conv_1", "layers.{detail}.conv_2", "layers.{detail}.conv_3"),
    *("layers.{detail}.conv_1", "layers.{detail}.conv_2", "from_rgb.{detail}.0"),
)
# In these layers, weights of pytorch_GAN_zoo and pro-gan-pth have a gain that is larger than pggan's by this factor.
GAINS = {"stem.dense": 4.0, "to_rgb.{side}": sqrt(2.0), "head.score": sqrt(2.0)}
UNFIT = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RuntimeError)  # errors of malformed files
# pggan's networks support only these values of other programs' settings.
FIXED = {
    **{"normalize_latents": True, "use_wscale": True, "use_pixelnorm": True, "use_leakyrelu": True},
    "pixelnorm_epsilon": 1e-8,
    # If lossCriterion is not WGANGP, generators of pytorch_GAN_zoo end in tanh, which pggan's generators lack.
    **{"leakyReluLeak": 0.2, "perChannelNormalization": True, "equalizedlR": True, "lossCriterion": "WGANGP"},
    "use_eql": True,  # equalized learning rate in pro-gan-pth
    "categoryVectorDim": 0,  # inputs of pytorch_GAN_zoo for classes
}


class Foreign(NamedTuple):
    """Networks that were converted from another program."""

    program: str
    averaged: LoadedGenerator  # averaged (EMA) G
    others: dict[str, Generator | Discriminator]  # "generator" (G without EMA) and "discriminator", if imported
    notes: list[str]  # sentences about networks that could not be imported


def run(config: ImportConfig) -> int:
    """Convert another program's file `config.source` to a generator file `config.out`; returns the exit code."""
    source = Path(config.source)
    if not source.is_file():
        raise UserError(f"source={source} is no file.", "Name a .pkl file of the official networks, or a PyTorch file.")
    out = check_output(config.out, (".safetensors",))
    program, generator, others, notes = read_foreign(source)
    out.parent.mkdir(parents=True, exist_ok=True)
    save_generator(generator, out, others)
    size, parameters = generator.resolution, count_parameters(generator.network)
    print(f"{out}: {size}x{size}, alpha {generator.alpha:g}, {parameters:,} parameters, trained by {program}")
    print(f"Training with init_from={out} starts from: {', '.join([*others, 'averaged generator'])}.")
    print("\n".join([*notes, next_command("sample", "seeds=0-63", run=out)]))
    return 0


def read_foreign(path: Path) -> Foreign:
    """Convert the networks in a file of another program; raises UserError for an unknown or damaged file."""
    try:
        content = read_foreign_file(path)
        networks = content if isinstance(content, tuple | list) else [content]
        if networks and all(isinstance(one, PickledNetwork) for one in networks):
            return from_official(*networks)
        saved = next((content[name] for name in ("shadow_generator", "generator") if name in content), content)
        if any(str(name).startswith("rgb_converters.") for name in saved.get("state_dict", ())):
            return from_pro_gan_pth(saved, content.get("generator"), content.get("discriminator"))
        raw, d = (content.get(name) for name in ("netG", "netD"))
        state = next((one for one in (content.get("avgG"), raw) if isinstance(one, Mapping)), content)
        if any(str(name).startswith("formatLayer.") for name in state):
            return from_gan_zoo(state, content.get("config"), raw, d)
        raise ValueError("the names of the layers match no known program")
    except (OSError, *UNFIT) as error:
        remedy = "Give a file of the official implementation, pytorch_GAN_zoo or pro-gan-pth."
        raise UserError(f"{path} can't be imported: {reason(error)}.", remedy) from error


def from_official(*networks: PickledNetwork) -> Foreign:
    """Convert networks of the official TensorFlow 1 progressive GAN: G, D and averaged G, or only averaged G."""
    everything = [{name: np.asarray(value) for name, value in one.state["variables"]} for one in networks]
    raw, d, average = everything if len(networks) == 3 else (None, None, everything[-1])
    for settings in (kwargs := [one.state["static_kwargs"] for one in networks]):
        require_ours(settings)

    def layer(values: Mapping[str, Array], name: str) -> tuple[Array, Array]:  # TensorFlow kernels are [H, W, in, out].
        if f"{name}_up/weight" in values:  # Transposed convolutions have mirrored kernels [H, W, out, in].
            return values[f"{name}_up/weight"].transpose(2, 3, 0, 1)[:, :, ::-1, ::-1], values[f"{name}_up/bias"]
        name += "_down" * (f"{name}_down/weight" in values)
        return np.moveaxis(values[f"{name}/weight"], (-1, -2), (0, 1)), values[f"{name}/bias"]

    unfused = d is not None and "8x8/Conv1/weight" in d
    group = 4 if d is None else int(kwargs[1].get("mbstd_group_size", 4))
    generator, others, notes = translated(
        (OFFICIAL, OFFICIAL_D),
        (average, raw, d),
        layer,
        Stem.official,
        int(kwargs[-1].get("label_size", 0)),
        resampling=Resampling.unfused if unfused else Resampling.fused,
        stddev_group=max(group, 1),
    )
    # The official variable `lod` is the number of resolutions above the current resolution, plus 1 - (fade-in alpha).
    sides = generator.architecture.resolutions[::-1]
    detail = min(max(float(average["lod"]), 0.0), len(sides) - 1.0)
    averaged = LoadedGenerator(generator, sides[int(detail)], 1.0 - detail % 1, 0)
    return Foreign("the official implementation", averaged, others, notes)


def from_gan_zoo(state: Mapping[str, Any], config: Any, raw: Any, d: Any) -> Foreign:
    """Convert pytorch_GAN_zoo's state dicts of averaged G (`state`), G (`raw`) and D; `config` holds their settings."""
    settings = config.state if isinstance(config, Instance) and isinstance(config.state, dict) else {}
    require_ours(settings)

    def layer(theirs: Mapping[str, Array], name: str) -> tuple[Array, Array]:
        weight = theirs[f"{name}.weight"]
        bias = theirs[f"{name}.bias"] * sqrt(2.0 / weight[0].size)  # pytorch_GAN_zoo scales biases like weights
        if name == GAN_ZOO_D[0]:  # For 4 images, pytorch_GAN_zoo's minibatch stddev divides by 3 (N - 1), pggan's by 4.
            weight = np.concatenate([weight[:, :-1], weight[:, -1:] * sqrt(4 / 3)], 1)
        return weight, bias

    found = tensors_of(state), tensors_of(raw), tensors_of(d)
    generator, others, notes = translated((GAN_ZOO, GAN_ZOO_D), found, layer, Stem.unit_bias)
    alpha = 1.0 - float(settings.get("alpha", 0))  # In pytorch_GAN_zoo, alpha is the weight of the old layers.
    averaged = LoadedGenerator(generator, generator.architecture.resolution, alpha, 0)
    return Foreign("pytorch_GAN_zoo", averaged, others, notes)


def from_pro_gan_pth(saved: Mapping[str, Any], raw: Any, d: Any) -> Foreign:
    """Convert pro-gan-pth 3's averaged G (`saved`), G (`raw`) and D, each a dictionary with `conf` and `state_dict`."""
    for one in (saved, raw, d):  # pro-gan-pth normalises latents outside of G; pggan does so in G.
        require_ours(one.get("conf", {}) if isinstance(one, Mapping) else {})

    def layer(theirs: Mapping[str, Array], name: str) -> tuple[Array, Array]:
        weight = theirs[f"{name}.weight"]
        if name == "layers.0.conv_1" and "rgb_converters.0.weight" in theirs:
            # On latents [N, Z, 1, 1], a transposed convolution's weight [Z, C, 4, 4] acts as a dense weight [16 C, Z].
            weight = weight.transpose(1, 2, 3, 0).reshape(-1, len(weight))
        return weight, theirs[f"{name}.bias"]

    found = [tensors_of(one.get("state_dict")) if isinstance(one, Mapping) else None for one in (saved, raw, d)]
    has_classes = any(".label_embedder." in name for name in found[2] or ())
    found[2] = None if has_classes else found[2]
    generator, others, notes = translated((PRO_GAN, PRO_GAN_D), found, layer, Stem.one_norm)
    notes += ["The import leaves out the discriminator: it has an embedding of classes."] * has_classes
    averaged = LoadedGenerator(generator, generator.architecture.resolution, 1.0, 0)
    return Foreign("pro-gan-pth", averaged, others, notes)


def require_ours(settings: Mapping[str, Any]) -> None:
    """Raise ValueError if a setting has a value that pggan's networks do not support."""
    for name, value in FIXED.items():
        if settings.get(name, value) != value:
            raise ValueError(f"it was built with {name}={settings[name]}, which pggan does not support")


def reason(error: Exception) -> str:
    """Return what is wrong with the file whose import raised `error`: a clause for a message, without line breaks."""
    if isinstance(error, TypeError | AttributeError):
        return "it holds no networks of a known program"
    return f"it has no {error}" if isinstance(error, KeyError) else " ".join(str(error).split())


def tensors_of(state: Any) -> dict[str, Array]:
    """Convert a state dict to {name: NumPy array}; names lose the part `module`, which nn.DataParallel adds."""
    tensors = {name: one for name, one in state.items() if isinstance(one, torch.Tensor)} if state else {}
    return {
        ".".join(part for part in name.split(".") if part != "module"): value.detach().numpy()
        for name, value in tensors.items()
    }


def translated(
    names: tuple[Sequence[str], Sequence[str]],
    theirs: Sequence[Mapping[str, Array] | None],
    layer: Callable[[Mapping[str, Array], str], tuple[Array, Array]],
    stem: Stem,
    num_classes: int = 0,
    **of_d: Any,
) -> tuple[Generator, dict[str, Generator | Discriminator], list[str]]:
    """Convert weights to networks; returns averaged G, {"generator": G, "discriminator": D}, and notes on failures.

    Args: names: the other program's layer names in G and in D; theirs: weights {name: array} of averaged G, G (or None)
    and D (or None); layer: function that reads a layer's weight [out, in, …] and bias; of_d: fields of Architecture.
    """
    averaged, raw, d = theirs
    assert averaged is not None
    state = translated_state(OURS, names[0], averaged, layer, stem)
    rgb = [state[name] for name in state if name.startswith("to_rgb.") and name.endswith("weight")]
    latent_size = state["stem.dense.weight"].shape[1] - num_classes
    of_d = {"resampling": Resampling.unfused if d else Resampling.fused, "stddev_group": 4} | of_d
    architecture = architecture_of(rgb, latent_size, stem, num_classes, **of_d)
    generator = Generator(architecture)
    generator.load_state_dict(state)
    others, notes = dict[str, Generator | Discriminator](), []
    kinds = (("generator", Generator, OURS, names[0], raw), ("discriminator", Discriminator, OURS_D, names[1], d))
    for name, kind, ours, their_names, arrays in kinds:
        try:
            if arrays:
                network = kind(architecture)
                network.load_state_dict(translated_state(ours, their_names, arrays, layer, stem))
                others[name] = network
        except UNFIT as error:
            notes.append(f"The import leaves out the {name}: {reason(error)}.")
    return generator.requires_grad_(False), others, notes


def translated_state(
    ours: Sequence[str],
    names: Sequence[str],
    theirs: Mapping[str, Array],
    layer: Callable[[Mapping[str, Array], str], tuple[Array, Array]],
    stem: Stem,
) -> dict[str, torch.Tensor]:
    """Convert one network's weights `theirs` to a state dict; `names` are the old layer names, `ours` are pggan's."""
    rgb, state = names[-1].partition("{")[0], dict[str, torch.Tensor]()
    count = sum(name.startswith(rgb) and name.endswith("weight") for name in theirs)
    for number in range(count):
        place = {"number": number, "below": number - 1, "detail": count - 1 - number, "side": MIN_RESOLUTION << number}
        for our_name, name in zip(ours, names, strict=True):
            if not our_name.startswith(("stem", "head") if number else "blocks"):
                weight, bias = layer(theirs, name.format(**place))
                gain = 1.0 if stem is Stem.official else GAINS.get(our_name, 1.0)
                for kind, array in (("weight", weight * gain), ("bias", bias)):
                    found = torch.from_numpy(np.array(array, np.float32, order="C"))
                    flat = kind == "weight" and our_name in ("head.dense", "head.score")
                    state[f"{our_name}.{kind}".format(**place)] = found.flatten(1) if flat else found
    if name := next((name for name, tensor in state.items() if not tensor.isfinite().all()), ""):
        raise ValueError(f"{name} has a number that is not finite")
    return state


def architecture_of(
    rgb: list[torch.Tensor], latent_size: int, stem: Stem, num_classes: int, **of_d: Any
) -> Architecture:
    """Return the Architecture that fits the to-RGB weights `rgb` (4x4 comes first); raises ValueError if none fits."""
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
            **of_d,
            stem=stem,
        )
        if [architecture.width(resolution) for resolution in architecture.resolutions] == widths:
            return architecture
    raise ValueError(f"its layers have {widths} feature maps, which do not halve regularly at higher resolutions")
