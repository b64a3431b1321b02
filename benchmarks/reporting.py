"""What a benchmark found, for people and for `benchmarks/results`."""

import json
from pathlib import Path
from typing import Any


def report(found: dict[str, Any], out: Path | None) -> None:
    """Print `found` as JSON, and write it to `out`, if given, whose folder is made."""
    text = json.dumps(found, indent=1)
    print(text)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n")
