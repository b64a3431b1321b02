"""`make gpu` runs to its end on the null GPU, where what it measures means nothing."""

import json
import subprocess
import sys

import pytest

from tests.cuda.null_gpu.build import environment

pytestmark = [pytest.mark.slow, pytest.mark.rare, pytest.mark.xdist_group("cuda")]


def test_every_part_ends_and_captured_runs_have_the_bits_of_eager_ones(null_gpu, tmp_path):
    out = tmp_path / "found.json"
    command = [sys.executable, "-m", "benchmarks.first_gpu", "--small", "--device", "cuda", "--out", str(out)]
    subprocess.run(command, env=environment(null_gpu), check=False)
    found = json.loads(out.read_text())
    assert not {name: part for name, part in found.items() if "failed" in part}
    assert found["capture"]["good"]
    assert found["resume"]["good"]
    assert found["memory"]["good"]
