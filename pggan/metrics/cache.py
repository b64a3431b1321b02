"""Numbers of real images, calculated once and kept: in ~/.cache/pggan/metrics, or below XDG_CACHE_HOME.

A file belongs to the facts that its numbers follow from, which begin with the checksum of the data set.  It carries a
checksum of its own: a damaged one is made anew.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from pggan.core.atomic_io import atomic_write
from pggan.core.environment import cache_folder
from pggan.core.tensor_file import save_tensors
from pggan.distributed.process_group import ProcessGroup


def cached(facts: dict[str, Any], calculate: Callable[[], Tensor], group: ProcessGroup) -> Tensor | None:
    """The tensor that belongs to `facts`, on rank 0; from the cache, or from `calculate`, which all ranks call.

    A cache that can't be written to costs time, and nothing else.
    """
    text = json.dumps(facts, sort_keys=True)
    path = cache_folder("metrics") / f"{facts['statistic']}-{sha256(text.encode()).hexdigest()[:24]}.safetensors"
    found = read(path, text) if group.is_main else None
    if group.broadcast_object(found is not None):
        return found
    made = calculate()
    if not group.is_main:
        return None
    with suppress(OSError, SafetensorError):
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(path) as temporary:
            save_tensors({"values": made.contiguous()}, temporary, {"facts": text, "sha256": checksum(made)})
    return made


def read(path: Path, text: str) -> Tensor | None:
    """The tensor in `path`; None unless it is whole and belongs to the facts in `text`."""
    try:
        with safe_open(path, "pt") as file:
            about, values = file.metadata() or {}, file.get_tensor("values")
    except (OSError, SafetensorError):
        return None
    valid = about.get("facts") == text and about.get("sha256") == checksum(values)
    return values if valid else None


def checksum(values: Tensor) -> str:
    """The SHA-256 of the numbers, in hexadecimal."""
    return sha256(values.contiguous().numpy().tobytes()).hexdigest()
