"""The JSON of a checkpoint or generator file, and whether what it says is possible.

Files are untrusted: sizes and shapes are checked against the architecture before anything is allocated.
Without torch.
"""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError, safe_open

from pggan.core.architecture import LIMITS, MIN_RESOLUTION, Architecture, Resampling, Stem, is_power_of_two
from pggan.core.atomic_io import parse_json, read_json
from pggan.core.errors import UserError

if TYPE_CHECKING:
    from torch import nn

VERSION = 4  # 4 has num_classes and class_names
STATE_FILE = "state.json"
GENERATOR_FILE = "generator.safetensors"
HEADER_KEY = "pggan"
CHECKSUM = "sha256"  # of everything else in state.json
COMPONENTS = ("generator", "discriminator", "generator_ema", "optimizer_g", "optimizer_d", "grad_scaler")
MILESTONE = "milestone"  # in state.json: marks a checkpoint that is kept for good
CONVOLUTION_METHODS = "convolutions"  # in state.json: the methods of the run's convolutions, by shape
CLASS_NAMES = "class_names"  # of the classes, in a header of a generator that was trained with labels
PROVENANCE = ("license", "data_statement")  # of a generator, in its header where they are known
FLAGS = ("blur", "noise", "residual")  # of an architecture
OPTIONAL = (*FLAGS, "bilateral")  # left out of a header where they are false or 0
MAX_NAME_LENGTH = 200  # characters of one
MAX_STATEMENT_LENGTH = 10_000  # characters of a data statement, which takes some hundred
MAX_STATE_BYTES = 4 * 2**20  # of state.json, which takes some kilobytes


def read_header(directory: Path) -> dict[str, Any]:
    """The content of a checkpoint's state.json; raises UserError when another version wrote it.

    Raises OSError, ValueError, KeyError, TypeError or OverflowError unless it is valid.
    """
    header = read_json(directory / STATE_FILE, MAX_STATE_BYTES)
    if (version := _require_count("version", header["version"])) != VERSION:
        problem = f"{directory} has checkpoint version {version}; this program reads version {VERSION}."
        raise UserError(problem, "Use the pggan that wrote it.")
    if header[CHECKSUM] != checksum_of(header):
        raise ValueError("its content has changed: the checksum is another one")
    check_stage(header)
    if (header["phase_index"], header["images"]) != (-1, 0):  # before the first update
        _require_count("phase_index", header["phase_index"])
    if not isinstance(header["state_sha256"], str) or not isinstance(header["config"], dict):
        raise ValueError("'state_sha256' or 'config' is of the wrong type")
    files = header["files"]
    if not isinstance(files, dict) or not {f"{component}.safetensors" for component in COMPONENTS} <= set(files):
        raise ValueError("it does not list the files of a checkpoint")
    for name, checksum in files.items():
        if not re.fullmatch(r"[a-z_]+\.safetensors", name):
            raise ValueError(f"it lists a file that may lie outside its directory: {name!r}")
        if not isinstance(checksum, str):
            raise ValueError(f"it has no checksum for {name}")
    return header


def write_header(directory: Path, header: dict[str, Any]) -> None:
    """Write the state.json of a checkpoint: `header` and its checksum."""
    (directory / STATE_FILE).write_text(json.dumps({**header, CHECKSUM: checksum_of(header)}, indent=1))


def mark_of(directory: Path, name: str) -> Any:
    """The value of `name`, such as MILESTONE, in a checkpoint's state.json, valid or not; None if there is none."""
    try:
        return read_json(directory / STATE_FILE, MAX_STATE_BYTES).get(name)
    except (OSError, ValueError):
        return None


def checksum_of(header: dict[str, Any]) -> str:
    """The checksum of what a state.json says."""
    rest = {key: value for key, value in header.items() if key != CHECKSUM}
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def check_stage(about: dict[str, Any]) -> Architecture:
    """The architecture in a header; raises ValueError (KeyError, TypeError) unless it and the stage are possible."""
    _require_count("images", about["images"])
    resolution, alpha = _require_count("resolution", about["resolution"]), about["alpha"]
    architecture = architecture_from(about["architecture"])
    if not (MIN_RESOLUTION <= resolution <= architecture.resolution and is_power_of_two(resolution)):
        raise ValueError(f"its networks have no resolution {resolution}")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 <= alpha <= 1:
        raise ValueError(f"alpha={alpha!r} is not between 0 and 1")
    return architecture


def check_class_names(about: dict[str, Any], architecture: Architecture) -> tuple[str, ...]:
    """The names of the classes in a header, empty where it has none; raises ValueError unless each class has one."""
    names = about.get(CLASS_NAMES) or []
    if not isinstance(names, list) or not all(isinstance(name, str) and len(name) <= MAX_NAME_LENGTH for name in names):
        raise ValueError(f"'{CLASS_NAMES}' is not a list of names")
    if names and len(names) != architecture.num_classes:
        raise ValueError(f"it names {len(names)} classes of {architecture.num_classes}")
    return tuple(names)


def check_provenance(about: dict[str, Any]) -> dict[str, Any]:
    """The licence and the data statement in a header, where it has them; raises ValueError unless they are text.

    A licence is a name as Hugging Face writes it, so that it can stand in the front matter of a model card.
    """
    found = {name: about[name] for name in PROVENANCE if about.get(name) is not None}
    for name, text in found.items():
        if not isinstance(text, str) or len(text) > MAX_STATEMENT_LENGTH:
            raise ValueError(f"'{name}' is not a text of at most {MAX_STATEMENT_LENGTH:,} characters")
    if not re.fullmatch(r"[\w.+-]+", found.get("license", "other")):
        raise ValueError(f"license={found['license']!r} is not a name such as cc-by-4.0")
    return found


def _require_count(name: str, value: object) -> int:
    """`value` if it is a whole number from 0 up; raises ValueError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**62:
        raise ValueError(f"'{name}' is not a count")
    return value


def read_generator_header(path: Path) -> dict[str, Any]:
    """The header of a generator file; raises what `refusing_generators` takes unless it is valid."""
    if not path.is_file():
        raise ValueError("it is not a plain file")
    with safe_open(path, "np") as file:
        about = parse_json((file.metadata() or {})[HEADER_KEY])
    check_class_names(about, check_stage(about))
    check_provenance(about)
    return about


@contextmanager
def refusing_generators(path: Path) -> Iterator[None]:
    """Inside, whatever is wrong with the generator file at `path` is raised as UserError."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        remedy = "Give a generator.safetensors that `pggan train` has written."
        raise UserError(f"{path} is not a valid generator of this program: {error}.", remedy) from error


def stored_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """The type and the shape of every tensor in a file, by name; raises SafetensorError if it is damaged."""
    with safe_open(path, "np") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dictionary
        return {name: (found.get_dtype(), tuple(found.get_shape())) for name, found in slices.items()}


def require_shapes(path: Path, network: "nn.Module") -> None:
    """Raise ValueError unless the file holds exactly the tensors of `network`; SafetensorError if it is damaged."""
    stored = stored_tensors(path)
    wanted = {name: ("F32", tuple(tensor.shape)) for name, tensor in network.state_dict().items()}
    if stored != wanted:
        name = min(name for name in {*stored, *wanted} if stored.get(name) != wanted.get(name))
        raise ValueError(f"{name} is {stored.get(name, 'missing')} where {wanted.get(name, 'nothing')} is expected")


def architecture_to_plain(architecture: Architecture) -> dict[str, Any]:
    """The architecture as plain values for JSON."""
    plain = {**asdict(architecture), "resampling": architecture.resampling.value, "stem": architecture.stem.value}
    if architecture.stem is Stem.official:  # as all files have it that were trained here
        del plain["stem"]
    for name in OPTIONAL:
        if not plain[name]:
            del plain[name]
    if architecture.features is None:
        del plain["features"], plain["features_from"]
    return plain


def architecture_from(plain: dict[str, Any]) -> Architecture:
    """The architecture that a header describes; raises ValueError, KeyError or TypeError when it is not possible."""
    for name, most in LIMITS.items():
        least = 0 if name in {"num_classes", *OPTIONAL} else 1
        given = plain.get(name, 0) if name in OPTIONAL else plain[name]
        if not least <= _require_count(name, given) <= most:
            raise ValueError(f"{name}={given} is not possible")
    resolution, decay = plain["resolution"], plain["fmap_decay"]
    if resolution < MIN_RESOLUTION or not is_power_of_two(resolution):
        raise ValueError(f"resolution={resolution} is not possible")
    if not isinstance(decay, int | float) or not math.isfinite(decay):
        raise ValueError("'fmap_decay' is not a number")
    for name in FLAGS:
        if not isinstance(plain.get(name, False), bool):
            raise ValueError(f"'{name}' is neither true nor false")
    stem = Stem(plain.get("stem", Stem.official.value))
    _check_features(plain)
    return Architecture(**{**plain, "resampling": Resampling(plain["resampling"]), "stem": stem})


def _check_features(plain: dict[str, Any]) -> None:
    """Raise ValueError unless the features that a header names, where it does, are possible."""
    features, first = plain.get("features"), plain.get("features_from", 2 * MIN_RESOLUTION)
    if features is not None and not (isinstance(features, str) and re.fullmatch(r"[\w:-]{1,200}@[0-9a-f]+", features)):
        raise ValueError("'features' does not name features")
    if _require_count("features_from", first) < 2 * MIN_RESOLUTION or not is_power_of_two(first):
        raise ValueError(f"features_from={first} is not possible")


def differences(ours: Architecture, theirs: Architecture) -> Iterator[str]:
    """The fields in which two architectures differ, as 'name: theirs -> ours'."""
    for name, value in asdict(ours).items():
        if value != getattr(theirs, name):
            yield f"{name}: {getattr(theirs, name)} -> {value}"
