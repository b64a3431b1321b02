"""Kill -9, at random instants of a run and at random instants inside saving."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pggan.checkpoints import write as saving
from pggan.checkpoints.read import checkpoints_of
from pggan.checkpoints.write import write_checkpoint
from pggan.run import train

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_same_command_recovers_from_every_kill_and_ends_the_same():
    """What the program finds wrong, strays, doubles, corrupt pictures, is a problem in its answer.

    As many kills as there is time for: docs/reliability.md has the figures of more, and the command.
    """
    command = [sys.executable, "-m", "benchmarks.soak", "--runs", "2", "--saves", "6", "--seed", "0"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    found = json.loads(result.stdout)
    assert found["runs"]["problems"] == found["saves"]["problems"] == []
    assert (found["runs"]["kills"], found["runs"]["recovered"], found["runs"]["equal"]) == (2, 2, 2)
    assert found["saves"]["kills"] == 6
    assert found["saves"]["recovered"] == found["saves"]["equal"] > 0
    assert found["runs"]["most_images_lost"] <= 2 * 16  # an interval, and one during a write
    assert found["saves"]["most_images_lost"] <= 2 * 8


@pytest.mark.parametrize("every", [8, 20])
def test_a_kill_at_any_step_loses_an_interval_and_one_write_however_slow_the_disk(
    tiny_config, tmp_path, monkeypatch, after_step, every
):
    """Every write takes longer than the steps of an interval; the disk is looked at after every step."""
    lost: list[int] = []

    def slow(run_dir, snapshot) -> None:
        time.sleep(0.1)
        write_checkpoint(run_dir, snapshot)

    def look(state) -> None:
        on_disk = max((int(path.name) for path in checkpoints_of(tmp_path)), default=0)
        lost.append(state.images - on_disk)

    monkeypatch.setattr(saving, "write_checkpoint", slow)
    after_step(look)
    assert train.run(tiny_config(f"run_dir={tmp_path}", f"checkpoint.every_images={every}")) == 0
    assert len(lost) == 20
    assert every < max(lost) <= 2 * every
