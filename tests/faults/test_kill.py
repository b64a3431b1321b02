"""Kill -9, at random instants of a run and at random instants inside saving."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.fault(2)
@pytest.mark.fault(3)
@pytest.mark.fault(35)
@pytest.mark.fault(36)
@pytest.mark.fault(40)
def test_the_same_command_recovers_from_every_kill_and_ends_the_same():
    """50 and 200 kills; what the program finds wrong, strays, doubles, broken pictures, is a problem in its answer."""
    command = [sys.executable, "-m", "benchmarks.soak", "--runs", "50", "--saves", "200", "--seed", "0"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert found["runs"]["problems"] == found["saves"]["problems"] == []
    assert (found["runs"]["kills"], found["runs"]["recovered"], found["runs"]["equal"]) == (50, 50, 50)
    assert found["saves"]["kills"] == 200
    assert found["saves"]["recovered"] == found["saves"]["equal"] > 0
    # One interval of 16 images, or of 8, and what is shown while a checkpoint is being written: the next one waits for
    # it, so that is another interval at most.
    assert found["runs"]["most_images_lost"] <= 2 * 16
    assert found["saves"]["most_images_lost"] <= 2 * 8
