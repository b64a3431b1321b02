"""The averaged generator (EMA) as a file to keep and share: safetensors, with the architecture in the header.

Files are untrusted, so the header is checked before memory is allocated.  torch, which loads slowly, is imported late.
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from stat import S_IMODE
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pggan.core.architecture import Architecture
from pggan.core.atomic_io import atomic_write, parse_json
from pggan.core.errors import UserError, nearest_path

if TYPE_CHECKING:
    import torch

    from pggan.networks.networks import Generator

VERSION = 4  # version of the safetensors header; version 4 added num_classes and class_names
STATE_FILE = "state.json"  # file in a checkpoint's directory: images shown, architecture, checksums
WEIGHTS_FILE = "weights.safetensors"  # file in a checkpoint's directory: the tensors of G, D and the averaged G
AVERAGED = "generator_ema/"  # the names of the averaged G's tensors in WEIGHTS_FILE begin with this
GENERATOR_FILE = "generator.safetensors"  # file in a run directory: the averaged G of the newest checkpoint
HEADER_KEY = "pggan"
CLASS_NAMES = "class_names"  # entry of the safetensors header; missing if the generator was trained without labels
ENTRIES = ("images", "phase", "resolution", "alpha", "architecture", CLASS_NAMES)  # entries that training writes
PROVENANCE = ("license", "data_statement")  # optional header entries: licence of weights, origin of training images
PREFIX = "pretrained:"  # run=pretrained:NAME means a generator that comes with the package
FOLDER = Path(__file__).parent / "pretrained"
NOTHING: "Mapping[str, torch.nn.Module]" = MappingProxyType({})


@dataclass(frozen=True)
class LoadedGenerator:
    """A generator that was read from a file, with the resolution and alpha that training had reached in that file."""

    network: "Generator"
    resolution: int
    alpha: float
    images: int
    class_names: tuple[str, ...] = ()  # the names of the classes, if known
    path: Path | None = None  # the file that the generator was read from
    license: str | None = None  # licence of the weights: an identifier of Hugging Face, such as cc-by-4.0
    data_statement: str | None = None  # says where the training images come from, such as "my own photographs"


def load_generator(run: str, device: "torch.device", key: str = "run") -> LoadedGenerator:
    """Load the averaged generator of `run`: a run directory, checkpoint, generator file or pretrained:NAME.

    Args: key: the configuration key that the error quotes.  Raises UserError when there is no valid generator.
    """
    import torch

    from pggan.networks.networks import Generator

    path = generator_path(run, key)
    with refusing_generators(path):
        about = read_generator_header(path)
        architecture = Architecture.from_plain(about["architecture"])
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            names = [name for name in names if name.startswith(AVERAGED)] or names  # don't load a checkpoint's G and D
            tensors = {name.removeprefix(AVERAGED): file.get_tensor(name) for name in names}
        with torch.device("meta"):  # the meta device checks names and shapes before memory is allocated
            Generator(architecture).load_state_dict(tensors, assign=True)
        network = Generator(architecture)
        network.load_state_dict(tensors)
    for name, tensor in network.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):  # with NaN weights, images would be black
            problem = f"{path} is damaged: its weights {name} are NaN or infinite."
            raise UserError(problem, "Choose another checkpoint=, or an undamaged copy of the file.")
    network.requires_grad_(False).to(device)
    stage = about["resolution"], float(about["alpha"]), about["images"]
    return LoadedGenerator(network, *stage, tuple(about.get(CLASS_NAMES) or ()), path, **stated_in(about))


def describe_generator(generator: LoadedGenerator) -> dict[str, Any]:
    """The header of a generator file: version, images, resolution, alpha, architecture, classes, licence."""
    stage = {"images": generator.images, "resolution": generator.resolution, "alpha": generator.alpha}
    names = {CLASS_NAMES: list(generator.class_names)} if generator.class_names else {}
    stated = {name: text for name in PROVENANCE if (text := getattr(generator, name)) is not None}
    architecture = generator.network.architecture.to_plain()
    return {"version": VERSION, **stage, "architecture": architecture, **names, **stated}


def save_generator(generator: LoadedGenerator, path: Path, others: "Mapping[str, torch.nn.Module]" = NOTHING) -> None:
    """Write a generator file that `load_generator` can read; raises OSError when the system refuses to write.

    others: further networks for the file, by name.  To read these networks, call `stored_networks`.
    """
    networks = {AVERAGED: generator.network, **{f"{name}/": network for name, network in others.items()}}
    tensors = {
        f"{prefix if others else ''}{name}": tensor.detach().cpu().contiguous()
        for prefix, network in networks.items()
        for name, tensor in network.state_dict().items()
    }
    with atomic_write(path) as temporary:
        save_tensors(tensors, temporary, {HEADER_KEY: json.dumps(describe_generator(generator))})


def pretrained_names() -> list[str]:
    """The possible NAMEs in run=pretrained:NAME."""
    return sorted(file.stem for file in FOLDER.glob("*.safetensors"))


def path_of_run(run: str, key: str = "run") -> Path:
    """Convert `run` to a path; pretrained:NAME is a file in the package.  Raises UserError for an unknown NAME."""
    if run.startswith(PREFIX) and run.removeprefix(PREFIX) not in pretrained_names():
        there = ", ".join(PREFIX + known for known in pretrained_names())
        raise UserError(f"No such generator comes with the package: {key}={run}.", f"Choose from: {there}.")
    return FOLDER / f"{run.removeprefix(PREFIX)}.safetensors" if run.startswith(PREFIX) else Path(run)


def generator_path(run: str, key: str = "run") -> Path:
    """The file with the averaged generator of `run`: a run directory, checkpoint, generator file or pretrained:NAME.

    Args: key: the configuration key that the error quotes.  Raises UserError when there is no such file.
    """
    path = path_of_run(run, key)
    if (path / STATE_FILE).is_file():  # a checkpoint of version 4 has a file for each network instead of WEIGHTS_FILE
        path /= WEIGHTS_FILE if (path / WEIGHTS_FILE).exists() else "generator_ema.safetensors"
    elif path.is_dir():
        path /= GENERATOR_FILE
    if not path.exists() or path.is_dir():
        remedy = "Give a run directory with a checkpoint, a directory checkpoints/<images>, or a generator.safetensors."
        raise UserError(f"{key}={run} has no generator.", nearest_path(run) or remedy)
    return path


def read_generator_header(path: Path) -> dict[str, Any]:
    """Read a generator file's header.  Call this in `with refusing_generators`, which turns errors into UserError."""
    if not path.is_file():
        raise ValueError("the path is not a plain file")
    with safe_open(path, "np") as file:
        about = parse_json((file.metadata() or {})[HEADER_KEY])
    architecture = architecture_in(about)
    if len(about.get(CLASS_NAMES) or ()) not in (0, architecture.num_classes):
        raise ValueError(f"the header does not name {architecture.num_classes} classes")
    return about


def architecture_in(about: dict[str, Any]) -> Architecture:
    """The architecture in the header `about` of a file; raises ValueError, KeyError or TypeError if invalid."""
    architecture = Architecture.from_plain(about["architecture"])
    if about["resolution"] not in architecture.resolutions or not 0 <= about["alpha"] <= 1 or about["images"] < 0:
        raise ValueError("the stored resolution, alpha or number of images shown is impossible")
    return architecture


def stated_in(about: dict[str, Any]) -> dict[str, Any]:
    """The licence and the data statement in the header `about`; either may be missing."""
    return {name: about[name] for name in PROVENANCE if about.get(name) is not None}


@contextmanager
def refusing_generators(path: Path) -> Iterator[None]:
    """Turn errors that the `with` block raises for an invalid generator file at `path` into UserError."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        remedy = "Give a generator.safetensors that `pggan train` has written."
        raise UserError(f"{path} is not a valid generator of this program: {error}.", remedy) from error


def stored_networks(path: Path) -> "dict[str, dict[str, torch.Tensor]]":
    """The tensors of a file as {network: {name: tensor}}; {} if the file has only the averaged generator."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    with refusing_generators(path), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - `file` is not a dictionary
            network, slash, tensor = name.partition("/")
            if slash:
                found.setdefault(network, {})[tensor] = file.get_tensor(name)
    return found


def stored_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and shape of each tensor in a safetensors file, by name; raises SafetensorError for a damaged file."""
    with safe_open(path, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - `file` is not a dictionary
        return {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}


def save_tensors(tensors: dict[str, "torch.Tensor"], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file with `metadata` in its header; raises OSError when the system refuses to write.

    The safetensors library alone would write files with mode 0600, and hide OSError in SafetensorError.
    """
    from safetensors.torch import save_file

    path.touch()
    mode = S_IMODE(path.stat().st_mode)  # keep the permissions that the umask gives a new file
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error
    path.chmod(mode)
