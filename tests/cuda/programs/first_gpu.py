"""Runs parts of the kit for the first GPU with its small sizes: `first_gpu.py FOLDER NAMES`; prints its result file.

Run by test_first_gpu.py, which says what has to be in it.
"""

import json
import sys
import warnings
from contextlib import redirect_stdout
from functools import partial
from math import inf
from pathlib import Path

import torch

from benchmarks.first_gpu import worker
from benchmarks.first_gpu.context import Context
from benchmarks.first_gpu.record import Record
from pggan.core.devices import choose_device

if __name__ == "__main__":
    torch.compile = partial(torch.compile, backend="eager")  # which traces all, and makes no kernels
    warnings.filterwarnings("ignore", "The .grad attribute")  # of torch.compile
    folder = Path(sys.argv[1])
    record = Record(folder / "result.json")
    with redirect_stdout(sys.stderr):
        worker.measure(Context(choose_device("cuda"), True, folder, record), inf, sys.argv[2])
    print(json.dumps(record.content))
