"""Convert and compare configurations, and list the versions of code and libraries."""

import json
import os
import platform
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output
from typing import Any

from pggan.config.withdrawn import RESUMABLE, WITHDRAWN
from pggan.core.process import COMMAND_VARIABLE, STARTED_VARIABLE, __version__

PACKAGE = Path(__file__).parents[1]
LIBRARIES = ("torch", "numpy", "pillow", "safetensors", "hydra-core", "omegaconf", "tensorboard")


def describe(config: Any) -> dict[str, Any]:
    """The dataclass `config` as a dict of JSON values, with the versions of code and libraries."""
    return {**json.loads(json.dumps(asdict(config))), "versions": versions()}


def versions() -> dict[str, str | None]:
    """The versions of this code, Python and main libraries; the command line and working directory of this process."""
    from importlib.metadata import version

    about = {"pggan": __version__, "code": _commit(), "python": platform.python_version()}
    place = {"command": os.environ.get(COMMAND_VARIABLE), "directory": os.getcwd()}
    return {**about, **{one: version(one) for one in LIBRARIES}, **place}


def command_seconds() -> float:
    """Seconds since the user started the command; 0 if unknown, or if torchrun has restarted this rank."""
    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0":
        return 0.0  # the training time in the checkpoint already includes the seconds before the restart
    now = time.time()
    return max(now - float(os.environ.get(STARTED_VARIABLE, now)), 0.0)


@cache
def _commit() -> str | None:
    try:
        commit = check_output(["git", "rev-parse", "HEAD"], cwd=PACKAGE, stderr=DEVNULL, text=True).strip()
        dirty = check_output(["git", "status", "--porcelain", "."], cwd=PACKAGE, stderr=DEVNULL, text=True).strip()
    except (OSError, CalledProcessError):
        return None
    return f"{commit}+changes" if dirty else commit


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the full key (such as 'schedule.batch') and the value of every leaf of nested dictionaries."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def changes(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (key, 'key: before -> now') for every key whose values differ between two configurations."""
    for key in sorted({*before, *now} - {"versions"}):
        old, new = before.get(key), now.get(key)
        name = f"{prefix}{key}"
        if isinstance(old, dict) and isinstance(new, dict | None):
            yield from changes(old, new or {}, f"{name}.")
        elif old != new and (name not in WITHDRAWN or old not in (None, RESUMABLE.get(name, old))):
            yield name, f"{name}: {old} -> {new}"
