"""Runs the kit for the first GPU with its small sizes, and prints its result file.

Run by test_first_gpu.py, which says what has to be in it.
"""

import json
import sys
from contextlib import redirect_stdout
from math import inf
from pathlib import Path

from benchmarks.first_gpu import worker
from benchmarks.first_gpu.context import Context
from benchmarks.first_gpu.record import Record
from pggan.core.devices import choose_device

if __name__ == "__main__":
    folder, left_out = Path(sys.argv[1]), sys.argv[2:]
    worker.PARTS = tuple(part for part in worker.PARTS if part.name not in left_out)
    record = Record(folder / "result.json")
    with redirect_stdout(sys.stderr):
        worker.measure(Context(choose_device("cuda"), True, folder, record), inf)
    print(json.dumps(record.content))
