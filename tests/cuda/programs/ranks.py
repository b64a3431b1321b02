"""One of several ranks on the null GPU: `ranks.py DATA FOLDER PORT PORT`; prints what its commands did as JSON.

Started with the variables that a launcher sets.  Run by test_ranks.py.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pggan.performance.plan import calibration, run_time
from pggan.training import cuda_graphs
from tests.cuda.null_gpu import session
from tests.cuda.programs.commands import MODEL, RUN, WARMUP_STEPS, command
from tests.processes import set_port

PLAN = [*MODEL, "schedule.first_resolution=4", "schedule.final_resolution=8", "schedule.batch=8", "steps=1"]


def run_all(data: str, folder: Path, ports: list[int]) -> dict[str, Any]:
    """What became of an elastic training, whose ranks exchange slices, and of a plan, whose steps sum gradients."""
    train = ["train", *RUN, f"data.path={data}", f"run_dir={folder}", "monitor.console=plain", "elastic=true"]
    plan = ["plan", *PLAN, "devices=cuda", "calibrate=true", "json=true"]
    found = {}
    for port, words in zip(ports, (train, plan), strict=True):
        set_port(port)
        found[words[0]] = command(*words) | {"asked": dict(session.counts())}
    return found


if __name__ == "__main__":
    cuda_graphs.WARMUP_STEPS = WARMUP_STEPS
    calibration.MIN_SECONDS = 0.0
    run_time.start_seconds = lambda *_: 1.0  # in place of another process, which takes long
    print(json.dumps(run_all(sys.argv[1], Path(sys.argv[2]), [int(port) for port in sys.argv[3:]])))
