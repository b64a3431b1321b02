"""How good the images of each recipe are: `python -m benchmarks.quality`.

Every row of benchmarks/quality/rows.py is trained with every seed, measured by `pggan evaluate` and drawn.  Figures and
grids are written to --results as soon as they are there; what is there with the same keys is not measured again.  A run
that was stopped is resumed.  Rows that need a GPU are left out without one.  Times compare only when nothing else runs
on the machine; `--print` shows the tables.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from benchmarks.quality.measure import measure, prepare_orl
from benchmarks.quality.rows import ORL, ROWS, Row
from benchmarks.quality.table import tables

RESULTS = Path(__file__).parents[1] / "results" / "quality"


def main() -> int:
    """Measure what is missing; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, metavar="ROW", help=", ".join(names))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--work", type=Path, default=Path("outputs/quality"), help="runs and data")
    parser.add_argument("--results", type=Path, default=RESULTS, help="figures and grids")
    parser.add_argument("--print", action="store_true", help="only print the tables of what is there")
    arguments = parser.parse_args()
    if not arguments.print:
        arguments.work.mkdir(parents=True, exist_ok=True)
        arguments.results.mkdir(parents=True, exist_ok=True)
        chosen = [row for row in ROWS if row.name in arguments.rows]
        if any(row.data == ORL for row in chosen):
            prepare_orl(arguments.work)
        for seed in arguments.seeds:  # the first seed of every row first
            for row in chosen:
                if is_measured(row, seed, arguments.results):
                    continue
                if row.gpu and not torch.cuda.is_available():
                    print(f"{row.name}, seed {seed}: left out, as it needs a GPU", flush=True)
                    continue
                print(f"{row.name}, seed {seed}", flush=True)
                measure(row, seed, arguments.work, arguments.results)
    print(tables(arguments.results))
    return 0


def is_measured(row: Row, seed: int, results: Path) -> bool:
    """Whether `results` has figures of `row` with its keys."""
    path = results / f"{row.name}-{seed}.json"
    return path.is_file() and json.loads(path.read_text())["keys"] == list(row.keys)


if __name__ == "__main__":
    sys.exit(main())
