"""The seconds of convolution methods on this machine, kept: in ~/.cache/pggan/convolutions, or below XDG_CACHE_HOME.

A file belongs to one kind of processor and one PyTorch.  It carries a checksum: a damaged one counts as
none, and is made anew.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from pggan.core.atomic_io import atomic_write, read_json
from pggan.core.cpu import processor_facts
from pggan.core.environment import cache_folder
from pggan.training.autotune_timing import Seconds

VERSION = 3  # of the methods and of how they are measured: raised when one becomes faster
MAX_BYTES = 2**22  # of a file; a shape takes about 200 bytes
# What makes libraries take other instructions than the processor has.
VARIABLES = ("ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")

Measurements = dict[str, dict[str, Seconds]]  # {shape: {method: seconds}}


def machine_facts() -> dict[str, Any]:
    """Facts of this machine and its libraries that the speed of the methods depends on."""
    return {
        "version": VERSION,
        **processor_facts(),
        "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        **{name: os.environ.get(name) for name in VARIABLES},
    }


def cache_file() -> Path:
    """Where the measurements of this machine are kept."""
    return cache_folder("convolutions") / f"{_digest(machine_facts())[:24]}.json"


def cached_measurements() -> Measurements:
    """The measurements of this machine that are kept; none where the file is missing, damaged or of another machine."""
    try:
        content = read_json(cache_file(), MAX_BYTES)
    except (OSError, ValueError):
        return {}
    shapes = content.get("shapes")
    if content.get("machine") != machine_facts() or not shapes or content.get("sha256") != _digest(shapes):
        return {}
    return {
        shape: {method: (first, each) for method, (first, each) in methods.items()} for shape, methods in shapes.items()
    }


def keep(new: Measurements) -> bool:
    """Add measurements to those that are kept; returns whether that was possible."""
    if not new:
        return True
    path, shapes = cache_file(), cached_measurements() | new
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            content = {"machine": machine_facts(), "shapes": shapes, "sha256": _digest(shapes)}
            temporary.write_text(json.dumps(content, indent=1))
        return True
    return False


def _digest(values: Mapping[str, Any]) -> str:
    return sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
