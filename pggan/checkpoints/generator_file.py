"""Read and write generator files: the averaged generator (EMA) as safetensors, with the architecture as metadata."""

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

VERSION = 4  # version of a generator file's header
STATE_FILE = "state.json"  # this file of a checkpoint holds the progress, the architecture and the checksums
WEIGHTS_FILE = "weights.safetensors"  # this file of a checkpoint holds G, D and the averaged G
AVERAGED = "generator_ema/"  # in WEIGHTS_FILE, the tensor names of the averaged G have this prefix
GENERATOR_FILE = "generator.safetensors"  # this file of a run holds the newest averaged G
HEADER_KEY = "pggan"
CLASS_NAMES = "class_names"  # only the headers of generators trained with labels have this entry
ENTRIES = ("images", "phase", "resolution", "alpha", "architecture", CLASS_NAMES)  # training writes these entries
PROVENANCE = ("license", "data_statement")  # optional header entries: the weights' licence, the training images' origin
PREFIX = "pretrained:"  # run=pretrained:NAME means the generator NAME that comes with the package
FOLDER = Path(__file__).parent / "pretrained"
NOTHING: "Mapping[str, torch.nn.Module]" = MappingProxyType({})


@dataclass(frozen=True)
class LoadedGenerator:
    """A generator from a file, with the resolution and the fade-in weight (alpha) that training had reached."""

    network: "Generator"
    resolution: int
    alpha: float
    images: int
    class_names: tuple[str, ...] = ()
    path: Path | None = None
    license: str | None = None  # Hugging Face's name of the licence, such as cc-by-4.0
    data_statement: str | None = None  # origin of the training images, such as "my own photographs"


def load_generator(run: str, device: "torch.device", key: str = "run") -> LoadedGenerator:
    """Load the averaged G of `run` (a run, checkpoint or generator file); error messages name the option `key`."""
    import torch  # imported late, because torch loads slowly

    from pggan.networks.networks import Generator

    path = generator_path(run, key)
    with refusing_generators(path):
        about = read_generator_header(path)
        architecture = Architecture.from_plain(about["architecture"])
        with safe_open(path, "pt") as file:
            names = list(file.keys())
            names = [name for name in names if name.startswith(AVERAGED)] or names  # only the averaged G is loaded
            tensors = {name.removeprefix(AVERAGED): file.get_tensor(name) for name in names}
        with torch.device("meta"):  # the file is untrusted, so names and shapes are checked before memory is allocated
            Generator(architecture).load_state_dict(tensors, assign=True)
        network = Generator(architecture)
        network.load_state_dict(tensors)
    for name, tensor in network.state_dict().items():
        if not bool(torch.isfinite(tensor).all()):  # a generator with NaN weights would draw black images
            problem = f"{path} is damaged: its weights {name} are NaN or infinite."
            raise UserError(problem, "Choose another checkpoint=, or an undamaged copy of the file.")
    network.train(False).requires_grad_(False).to(device)
    stage = about["resolution"], float(about["alpha"]), about["images"]
    return LoadedGenerator(network, *stage, tuple(about.get(CLASS_NAMES) or ()), path, **stated_in(about))


def describe_generator(generator: LoadedGenerator) -> dict[str, Any]:
    """Return what a generator file stores in its header: training progress, architecture, classes and licence."""
    stage = {"images": generator.images, "resolution": generator.resolution, "alpha": generator.alpha}
    names = {CLASS_NAMES: list(generator.class_names)} if generator.class_names else {}
    stated = {name: text for name in PROVENANCE if (text := getattr(generator, name)) is not None}
    return {"version": VERSION, **stage, "architecture": generator.network.architecture.to_plain(), **names, **stated}


def save_generator(generator: LoadedGenerator, path: Path, others: "Mapping[str, torch.nn.Module]" = NOTHING) -> None:
    """Write a generator file.  The file also stores `others` {name: network}, such as the discriminator."""
    networks = {AVERAGED: generator.network, **{f"{name}/": network for name, network in others.items()}}
    tensors = {
        f"{prefix if others else ''}{name}": tensor.detach().cpu().contiguous()
        for prefix, network in networks.items()
        for name, tensor in network.state_dict().items()
    }
    with atomic_write(path) as temporary:
        save_tensors(tensors, temporary, {HEADER_KEY: json.dumps(describe_generator(generator))})


def pretrained_names() -> list[str]:
    """List the generators that come with the package."""
    return sorted(file.stem for file in FOLDER.glob("*.safetensors"))


def path_of_run(run: str, key: str = "run") -> Path:
    """Return the path for `run`, which is a path or pretrained:NAME; raises UserError if NAME is unknown."""
    if run.startswith(PREFIX) and run.removeprefix(PREFIX) not in pretrained_names():
        there = ", ".join(PREFIX + known for known in pretrained_names())
        raise UserError(f"No such generator comes with the package: {key}={run}.", f"Choose from: {there}.")
    return FOLDER / f"{run.removeprefix(PREFIX)}.safetensors" if run.startswith(PREFIX) else Path(run)


def generator_path(run: str, key: str = "run") -> Path:
    """Return the path of the generator file that `run` is or contains; error messages name the option `key`."""
    path = path_of_run(run, key)
    if (path / STATE_FILE).is_file():  # checkpoints of version 4 have one file for each network
        path /= WEIGHTS_FILE if (path / WEIGHTS_FILE).exists() else "generator_ema.safetensors"
    elif path.is_dir():
        path /= GENERATOR_FILE
    if not path.exists() or path.is_dir():
        remedy = "Give a run directory with a checkpoint, a directory checkpoints/NUMBER, or a generator.safetensors."
        problem = f"{key}={run} {'has no generator' if path_of_run(run, key).exists() else 'does not exist'}."
        ours = f"Did you mean '{PREFIX}{run}'?" if run in pretrained_names() else ""
        raise UserError(problem, ours or nearest_path(run) or remedy)
    return path


def read_generator_header(path: Path) -> dict[str, Any]:
    """Read and check a generator file's header.  Call this function inside `with refusing_generators(path)`."""
    if not path.is_file():
        raise ValueError("the path is not a regular file")
    with safe_open(path, "np") as file:
        about = parse_json((file.metadata() or {})[HEADER_KEY])
    architecture = architecture_in(about)
    if len(about.get(CLASS_NAMES) or ()) not in (0, architecture.num_classes):
        raise ValueError(f"the header does not name {architecture.num_classes} classes")
    return about


def architecture_in(about: dict[str, Any]) -> Architecture:
    """Read the architecture from the header `about`; raises ValueError, KeyError or TypeError if it is invalid."""
    architecture = Architecture.from_plain(about["architecture"])
    if about["resolution"] not in architecture.resolutions or not 0 <= about["alpha"] <= 1 or about["images"] < 0:
        raise ValueError("the stored resolution, fade-in weight (alpha) or number of images shown is impossible")
    return architecture


def stated_in(about: dict[str, Any]) -> dict[str, Any]:
    """Return the header's entries about the licence of the weights and the origin of the training images."""
    return {name: about[name] for name in PROVENANCE if about.get(name) is not None}


@contextmanager
def refusing_generators(path: Path) -> Iterator[None]:
    """Raise UserError if the `with` block fails because the generator file `path` is invalid."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        remedy = "Give a generator.safetensors from `pggan train`. `pggan import` converts networks of other projects."
        raise UserError(f"{path} is not a valid generator file of pggan: {error}.", remedy) from error


def stored_networks(path: Path) -> "dict[str, dict[str, torch.Tensor]]":
    """Read {network: {name: tensor}} from a file with several networks; returns {} for a file with only a generator."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    with refusing_generators(path), safe_open(path, "pt") as file:
        for name in file.keys():  # noqa: SIM118 - `file` is not a dictionary
            network, slash, tensor = name.partition("/")
            if slash:
                found.setdefault(network, {})[tensor] = file.get_tensor(name)
    return found


def stored_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Return {tensor name: (type, shape)} of a safetensors file; raises SafetensorError if the file is damaged."""
    with safe_open(path, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - `file` is not a dictionary
        return {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}


def save_tensors(tensors: dict[str, "torch.Tensor"], path: Path, metadata: dict[str, str]) -> None:
    """Write a safetensors file with `metadata` in its header; raises OSError when the system refuses to write."""
    from safetensors.torch import save_file

    path.touch()
    mode = S_IMODE(path.stat().st_mode)  # `save_file` changes the file's mode to 0600; `chmod` below undoes this change
    try:
        save_file(tensors, path, metadata)
    except SafetensorError as error:
        number = re.search(r"\(os error (\d+)\)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), str(error)) from error
    path.chmod(mode)
