"""What `make gpu` measures: gradients beside those that a file carries, and figures out of range."""

import pytest
import torch

from benchmarks.first_gpu import table
from benchmarks.gradients import BOUNDS, CASES, errors


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_gradients_on_a_cpu_are_those_of_the_file_up_to_their_rounding(precision):
    found = errors(torch.device("cpu"), precision)
    assert len(found) == 2 * len(CASES)
    assert all(error < BOUNDS[precision][name[-1]] for name, error in found.items())
    if precision == "fp32":
        assert max(found.values()) < 1e-4


def test_figures_out_of_their_range_and_items_that_failed_or_are_missing_are_counted(capsys, tmp_path):
    figures = {
        "too large": {"measured": 3.0, "expected": [1.0, 2.0]},
        "in range": {"measured": 1.5, "expected": [1.0, 2.0]},
        "unknown": {"measured": 7.0, "expected": None},
    }
    items = {"one": {"figures": figures, "clocks": ["1980 MHz"], "failed": None, "seconds": 1.0}}
    items["two"] = {"figures": {}, "clocks": [], "failed": "RuntimeError: CUDA error"}
    assert table({"items": items}, tmp_path, ["one", "two", "three"]) == 3
    said = capsys.readouterr().out
    assert said.count(": NOT AS EXPECTED") == 1
    assert all(words in said for words in ("RuntimeError: CUDA error", "2 NOT AS EXPECTED; NOT MEASURED: three;"))
