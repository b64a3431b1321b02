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


def run(library: Path, *words: str) -> Any:
    """What a program of `programs.py` prints on the null GPU."""
    program = started(library, "tests.cuda.programs", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = program.communicate()
    assert program.returncode == 0, errors[-8000:]
    return json.loads(said)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        rows = run(build(Path(cache)), "launches")
    # A line per row, so that a difference shows what has changed.
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    TABLE.write_text(f'{{\n  "torch": {json.dumps(torch.__version__)},\n  "rows": {{\n{lines}\n  }}\n}}\n')
    print(f"{TABLE} is written; the commit says why it differs.")
