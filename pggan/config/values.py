"""A configuration as plain values, what differs between two, and the versions of everything that shapes a run."""

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

from pggan.config.withdrawn import WITHDRAWN
from pggan.core.process import COMMAND_VARIABLE, STARTED_VARIABLE, __version__

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("torch", "numpy", "pillow", "safetensors", "hydra-core", "omegaconf", "tensorboard")


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
    from importlib.metadata import version

    about = {"pggan": __version__, "code": _commit(), "python": platform.python_version()}
    return {**about, **{one: version(one) for one in LIBRARIES}, "command": os.environ.get(COMMAND_VARIABLE)}


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
