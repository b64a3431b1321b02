"""What `make gpu` measures: gradients beside those that a file carries, and what it says without a GPU."""

import subprocess
import sys

import pytest
import torch

from benchmarks.first_gpu import table
from benchmarks.gradients import BOUNDS, CASES, errors

CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_on_a_cpu_are_those_of_the_file_up_to_their_rounding(precision):
    found = errors(CPU, precision)
    assert len(found) == 2 * len(CASES)
    assert all(error < BOUNDS[precision][name[-1]] for name, error in found.items())
    if precision == "fp32":
        assert max(found.values()) < 1e-4


def test_figures_out_of_their_range_and_items_that_failed_are_counted(capsys, tmp_path):
    figures = {
        "too large": {"measured": 3.0, "expected": [1.0, 2.0]},
        "in range": {"measured": 1.5, "expected": [1.0, 2.0]},
        "unknown": {"measured": 7.0, "expected": None},
    }
    items = {"one": {"figures": figures, "clocks": ["1980 MHz"], "failed": None, "seconds": 1.0}}
    items["two"] = {"figures": {}, "clocks": [], "failed": "RuntimeError: CUDA error"}
    assert table({"items": items}, tmp_path) == 2
    said = capsys.readouterr().out
    assert said.count("NOT AS EXPECTED") == 1
    assert "RuntimeError: CUDA error" in said


@pytest.mark.rare
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence_says_so(tmp_path):
    command = [sys.executable, "-m", "benchmarks.first_gpu", "--out", str(tmp_path / "found.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "PyTorch finds no GPU" in ended.stderr
    assert "Traceback" not in ended.stderr
