"""Plain values of a configuration: those of the YAML files of configs/, those of a run, and what differs.

Also the versions of everything that shapes a run.
"""

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from enum import Enum
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output
from typing import Any

from pggan.config.withdrawn import WITHDRAWN, without_withdrawn
from pggan.core.process import COMMAND_VARIABLE, STARTED_VARIABLE, __version__

LIBRARIES = ("torch", "numpy", "pillow", "safetensors", "hydra-core", "omegaconf", "tensorboard")
PACKAGE = Path(__file__).parents[1]
# In a checkout, configs/ lies beside the package; in an installed wheel, inside it.
CONFIGS = next(folder / "configs" for folder in Path(__file__).parents[2:0:-1] if (folder / "configs").is_dir())


def choices_of(group: str) -> list[str]:
    """The files of a folder of configs/."""
    return sorted(file.stem for file in (CONFIGS / group).glob("*.yaml"))


def default_values(choices: Mapping[str, str]) -> dict[str, Any]:
    """The values of configs/train.yaml as they are written, with `choices` of files by their groups."""
    from yaml import safe_load  # which --help does without

    values: dict[str, Any] = safe_load((CONFIGS / "train.yaml").read_text())
    defaults = {group: name for entry in values.pop("defaults") if entry != "_self_" for group, name in entry.items()}
    for group, name in {**defaults, **choices}.items():
        file = CONFIGS / group / f"{name}.yaml"
        values |= {group: safe_load(file.read_text())} if file.is_file() else {}
    return values


def of_earlier_version(values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a run's config.yaml: without what is withdrawn, and with the defaults of keys that it lacks."""
    chosen = {name: values[name]["name"] for name in ("loss", "augmentation", "gradients") if name in values}
    found: dict[str, Any] = filled(without_withdrawn(values), default_values(chosen))
    return found


def filled(given: Any, default: Any) -> Any:
    """`given`, and where both are tables, with the values of `default` that it lacks."""
    if not isinstance(given, Mapping) or not isinstance(default, Mapping):
        return given
    return {**given, **{key: filled(given.get(key, value), value) for key, value in default.items()}}


def to_plain(config: Any) -> dict[str, Any]:
    """A configuration as plain values, from which it can be made again."""

    def plain(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {key: value.name if isinstance(value, Enum) else value for key, value in pairs}

    return asdict(config, dict_factory=plain)


def describe(config: object) -> dict[str, Any]:
    """The configuration as JSON gives it back (keys are text), with `versions`."""
    return {**json.loads(json.dumps(to_plain(config))), "versions": versions()}


def versions() -> dict[str, str | None]:
    """Versions of this code, of Python and of the libraries that matter, and the command line that was given."""
    from importlib.metadata import PackageNotFoundError, version

    found: dict[str, str | None] = {"pggan": __version__, "code": _commit(), "python": platform.python_version()}
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            found[library] = None
    return {**found, "command": os.environ.get(COMMAND_VARIABLE)}


def command_seconds() -> float:
    """Seconds since the command was given; 0 where that is not known."""
    now = time.time()
    return max(now - float(os.environ.get(STARTED_VARIABLE, now)), 0.0)


@cache  # the code of a process stays as it is
def _commit() -> str | None:
    """The commit of the code that runs, with '+changes' when files differ from it; None outside a repository."""
    try:
        commit = check_output(["git", "rev-parse", "HEAD"], cwd=PACKAGE, stderr=DEVNULL, text=True).strip()
        dirty = check_output(["git", "status", "--porcelain", "."], cwd=PACKAGE, stderr=DEVNULL, text=True).strip()
    except (OSError, CalledProcessError):
        return None
    return f"{commit}+changes" if dirty else commit


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested tables, each with its full key."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The keys in which two descriptions differ, each with 'key: before -> now'."""
    for key in sorted({*before, *now} - {"versions"}):
        old, new = before.get(key), now.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from changes(old, new, f"{prefix}{key}.")
        elif old != new and f"{prefix}{key}" not in WITHDRAWN:
            yield f"{prefix}{key}", f"{prefix}{key}: {old} -> {new}"
