"""One of several ranks on the null GPU: `ranks.py DATA FOLDER PORT PORT`; prints what its commands did as JSON.

Started with the variables that a launcher sets.  Run by test_ranks.py.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pggan.training import cuda_graphs
from tests.cuda.null_gpu import session
from tests.cuda.programs.commands import RUN, WARMUP_STEPS, command
from tests.processes import set_port


def run_all(data: str, folder: Path, ports: list[int]) -> dict[str, Any]:
    """What became of an elastic training, whose ranks exchange slices."""
    train = ["train", *RUN, f"data.path={data}", f"run_dir={folder}", "monitor.console=plain", "elastic=true"]
    set_port(ports[0])
    return {"train": command(*train) | {"asked": dict(session.counts())}}


if __name__ == "__main__":
    cuda_graphs.WARMUP_STEPS = WARMUP_STEPS
    print(json.dumps(run_all(sys.argv[1], Path(sys.argv[2]), [int(port) for port in sys.argv[3:]])))
