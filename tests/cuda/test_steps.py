"""Steps run on CUDA, are captured and replayed while networks grow, never make the host wait, and launch no more.

`python -m tests.cuda.test_steps` writes the table of what a step asks of the device anew.  Counts hold for the version
of PyTorch that the table names.  A change of pggan that changes the table has to say why.
"""

import json
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

from tests.cuda.null_gpu.build import build, started

pytestmark = pytest.mark.slow
MOST_NODES = {1024: 700, 4: 260}
TABLE = Path(__file__).with_name("launches.json")


def run(library, *words):
    """What a program of `programs.py` prints on the null GPU."""
    program = started(library, "tests.cuda.programs", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said, errors = program.communicate()
    assert program.returncode == 0, errors[-8000:]
    return json.loads(said)


@pytest.mark.parametrize("every", ["", pytest.param("every", marks=pytest.mark.rare)], ids=["one", "every"])
def test_steps_are_captured_and_replayed_in_every_phase_and_steady_ones_never_wait(null_gpu, every):
    """Nor do they make a pageable copy, or take memory from the system."""
    for outcome in run(null_gpu, "steps", every):
        about = outcome["about"]
        assert "error" not in outcome, f"{about}: {outcome['error']}"
        assert outcome["steady"] == [], about
        assert outcome["replays"] == [about["reg_interval"] if about["graphs"] else 0] * 3, about


def test_steps_ask_of_the_device_what_the_table_says(null_gpu):
    table = json.loads(TABLE.read_text())
    if table["torch"] != torch.__version__:
        pytest.skip(f"the table is for PyTorch {table['torch']}, this is {torch.__version__}")
    rows = table["rows"]
    assert run(null_gpu, "launches") == rows, "`python -m tests.cuda.test_steps` writes them anew; the commit says why"
    assert {(row["waits"], row["replay_waits"], row["copied_maps"]) for row in rows.values()} == {(0, 0, 0)}
    assert rows["1024 stable wgan_gp bf16"]["graph_nodes"] <= MOST_NODES[1024]
    assert rows["4 stable wgan_gp bf16"]["graph_nodes"] <= MOST_NODES[4]


@pytest.mark.rare
def test_a_capture_that_does_not_fit_or_is_not_allowed_says_what_to_do_and_leaves_cuda_as_it_was(null_gpu):
    found = run(null_gpu, "failures")
    assert "StepFailed: Out of memory at 32x32 with micro-batches of 32 images" in found["too_small"]["error"]
    assert "StepFailed: CUDA can't capture a step" in found["not_allowed"]["error"]
    assert "Set compute.cuda_graphs=off" in found["not_allowed"]["error"]
    assert found["again"] == [True, 2]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as cache:
        rows = run(build(Path(cache)), "launches")
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    TABLE.write_text(f'{{\n  "torch": {json.dumps(torch.__version__)},\n  "rows": {{\n{lines}\n  }}\n}}\n')
