"""`make gpu` on a CPU: the parts that need no GPU, with reduced sizes."""

import json
import subprocess
import sys

import pytest

from benchmarks.gradients import largest
from pggan.losses import LOSSES


def first_gpu(*words):
    command = [sys.executable, "-m", "benchmarks.first_gpu", "--device", "cpu", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.rare
def test_parts_are_measured_once_and_kept(tmp_path):
    out = tmp_path / "found.json"
    ended = first_gpu("--parts", "resume", "gradients", "memory", "--out", out)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(out.read_text())
    assert set(found) == {"about", "resume", "gradients"}  # memory needs a GPU
    assert found["resume"]["good"]
    assert found["gradients"]["good"]
    assert found["gradients"]["fp32 d"]["largest"] < 1e-4 < found["gradients"]["bf16 d"]["median"]
    again = first_gpu("--parts", "resume", "--out", out)
    assert json.loads(out.read_text()) == found
    assert "as expected" in again.stdout


@pytest.mark.rare
def test_what_fails_is_kept_with_its_last_line_and_tried_again_when_asked(tmp_path):
    out = tmp_path / "found.json"
    assert first_gpu("--parts", "doctor", "--part-seconds", "0.01", "--out", out).returncode == 1
    assert "no end within" in json.loads(out.read_text())["doctor"]["failed"]
    assert first_gpu("--parts", "doctor", "--retry", "--out", out).returncode == 0
    other = {"about": {"device": "another"}}
    out.write_text(json.dumps(other))
    assert "name another file" in first_gpu("--out", out).stderr


def test_the_bound_of_a_gradient_grows_with_rounding_and_depth():
    assert len(LOSSES) == 3
    assert largest(8, 2**-24) < largest(8, 2**-11) < largest(16, 2**-11) < largest(16, 2**-8)
