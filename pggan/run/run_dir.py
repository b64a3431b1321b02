"""The directory of one run: where it is, and what it says about itself."""

import math
import platform
import time
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output
from typing import Any

from omegaconf import OmegaConf

from pggan import __version__
from pggan.config import TrainConfig
from pggan.core.atomic_io import make_directory, whole_file
from pggan.core.errors import UserError

LIBRARIES = ("torch", "numpy", "pillow", "safetensors", "hydra-core", "omegaconf", "tensorboard")


def choose_run_dir(config: TrainConfig) -> Path:
    """The directory that `config` names, or a new one under outputs/<name>/; nothing is created yet."""
    if config.run_dir is not None:
        path = Path(config.run_dir)
        if path.exists() and not path.is_dir():
            raise UserError(f"run_dir={path} is a file.", "Name a directory, new or of an earlier run.")
        return path
    stem = Path("outputs") / config.name / time.strftime("%Y-%m-%d_%H-%M-%S")
    names = (stem if number == 1 else stem.with_name(f"{stem.name}_{number}") for number in range(1, 1000))
    return next(name for name in names if not name.exists())


def create_run_dir(path: Path) -> None:
    """Make the directories of a run; raises UserError when that can't be done."""
    try:
        for directory in (path / "samples", path / "checkpoints"):
            make_directory(directory)
    except OSError as error:
        raise UserError(f"run_dir={path} can't be written: {error.strerror}.", "Choose another run_dir=.") from error


def describe(config: TrainConfig) -> dict[str, Any]:
    """The configuration as plain values, with the versions of everything that shaped the run; exact as JSON."""
    return {**_json_values(plain(config)), "versions": versions()}


def plain(config: object) -> dict[str, Any]:
    """A configuration as plain values, from which it can be made again."""
    values = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    assert isinstance(values, dict), "a dataclass becomes a dictionary"
    return {str(key): value for key, value in values.items()}


def _json_values(value: Any) -> Any:
    """`value` as it comes back from JSON: keys are text; an infinity, which JSON has not, is too."""
    if isinstance(value, dict):
        return {str(key): _json_values(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_json_values(inner) for inner in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_config(path: Path, description: dict[str, Any]) -> None:
    """Write config.yaml."""
    with whole_file(path / "config.yaml") as temporary:
        temporary.write_text(OmegaConf.to_yaml(OmegaConf.create(description)))


def versions() -> dict[str, str | None]:
    """Versions of this code, of Python and of the libraries that matter."""
    found: dict[str, str | None] = {
        "pggan": __version__,
        "code": _commit(),
        "python": platform.python_version(),
    }
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = None
    return found


def code_in_use() -> str:
    """The commit or version, and a digest of the sources, which may differ where neither of these does."""
    digest, here = sha256(), Path(__file__).parents[1]
    for path in sorted(here.rglob("*.py")):
        digest.update(f"{path.relative_to(here)}\0".encode() + path.read_bytes())
    return f"{_commit() or __version__} with files {digest.hexdigest()[:12]}"


def changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys in which two descriptions differ, each with 'key: before -> now'."""
    for key in sorted({*before, *now} - {"versions"}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from changes(old, new, f"{prefix}{key}.")
        elif old != new:
            yield f"{prefix}{key}", f"{prefix}{key}: {old} -> {new}"


def _commit() -> str | None:
    """The version-control commit of the code that runs, with '+changes' when files differ from it."""
    here = Path(__file__).parents[1]
    try:
        commit = check_output(["git", "rev-parse", "HEAD"], cwd=here, stderr=DEVNULL, text=True).strip()
        dirty = check_output(["git", "status", "--porcelain", "."], cwd=here, stderr=DEVNULL, text=True).strip()
    except (OSError, CalledProcessError):
        return None
    return f"{commit}+changes" if dirty else commit
