"""The result of a benchmark, printed and written to `benchmarks/results`."""

import json
from pathlib import Path
from typing import Any


def report(found: dict[str, Any], out: Path | None) -> None:
    """Print `found` as JSON; if `out` is given, make its folder and write it there too."""
    text = json.dumps(found, indent=1)
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
