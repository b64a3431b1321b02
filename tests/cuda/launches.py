"""The table of what a step asks of the device: `python -m tests.cuda.launches` writes it anew.

A change of pggan that changes the table has to say why.  Counts hold for one version of PyTorch, which the table names.
"""

import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import torch

from tests.cuda.null_gpu.build import build, started

TABLE = Path(__file__).with_suffix(".json")
WRITE = "python -m tests.cuda.launches"


def count(library: Path) -> dict[str, dict[str, int]]:
    """The counts of `programs/launches.py`."""
    with started(library, "tests.cuda.programs.launches", stdout=subprocess.PIPE) as program:
        rows: dict[str, dict[str, int]] = json.load(program.stdout)
    return rows


def read() -> dict[str, Any]:
    """The table: the version of PyTorch, and counts by row."""
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


def write(rows: dict[str, dict[str, int]]) -> None:
    """Write the table, a line per row so that a difference shows what has changed."""
    lines = [f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items()]
    text = ",\n".join(lines)
    TABLE.write_text(f'{{\n  "torch": {json.dumps(torch.__version__)},\n  "rows": {{\n{text}\n  }}\n}}\n')


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        write(count(build(Path(cache))))
    print(f"{TABLE} is written; the commit says why it differs.")
