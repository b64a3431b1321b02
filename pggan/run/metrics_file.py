"""metrics.jsonl: the scalars of each tick as one JSON object per line."""

import json
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pggan.core.atomic_io import atomic_write


class MetricsFile:
    """The file of one run, and the hours of training that it has counted."""

    def __init__(self, path: Path, images: int) -> None:
        """Continue from `images`: lines beyond it are dropped, and hours count on from the last line that stays."""
        self.path, kept = path, [""]
        if path.is_file():
            kept += [line for line in path.read_text().splitlines() if _images_of(line) <= images]
            with atomic_write(path) as temporary:
                temporary.write_text("".join(f"{line}\n" for line in kept[1:]))
        hours = json.loads(kept[-1]).get("hours", 0.0) if kept[-1] else 0.0
        self._began = time.monotonic() - 3600 * hours

    @property
    def hours(self) -> float:
        """Hours of training so far, without the steps that a resumed run takes again."""
        return (time.monotonic() - self._began) / 3600

    def append(self, values: Mapping[str, Any]) -> None:
        """Append a line; a number that is not finite is written as null, because JSON has no NaN."""
        finite = {key: None if isinstance(of, float) and not math.isfinite(of) else of for key, of in values.items()}
        with self.path.open("a") as file:
            file.write(json.dumps(finite, allow_nan=False) + "\n")


def last_values(path: Path) -> dict[str, Any]:
    """The values of the last whole line of a metrics.jsonl, by tag; none where there is no such line or file."""
    lines = path.read_text().splitlines() if path.is_file() else []
    return next((json.loads(line) for line in reversed(lines) if _images_of(line) < sys.maxsize), {})


def _images_of(line: str) -> int:
    try:
        return int(json.loads(line)["images"])
    except (ValueError, KeyError, TypeError):  # a line cut short by a kill or a full disk
        return sys.maxsize
