"""The directory of a run: one process at a time, and the hours of training that its numbers tell."""

import json
import os

import pytest

from pggan.core.errors import UserError
from pggan.run.run_dir import MetricsFile, lock_run_dir


def test_a_directory_is_locked_by_one_process_which_is_named(tmp_path):
    with lock_run_dir(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"), lock_run_dir(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_was_made_for_nothing_goes_away_again(tmp_path):
    with lock_run_dir(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with lock_run_dir(tmp_path / "c"):
        (tmp_path / "c" / "train.log").touch()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["train.log"]


def test_lines_beyond_a_checkpoint_are_dropped_and_hours_go_on_from_the_last_that_stays(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = [{"images": 8, "hours": 1.0, "D/loss": None}, {"images": 16, "hours": 2.0}]
    path.write_text("\n".join([*map(json.dumps, lines), '{"images": 3']))
    resumed = MetricsFile(path, 8)
    assert resumed.hours == pytest.approx(1.0, abs=1e-3)
    assert json.loads(path.read_text()) == lines[0]
    resumed.append({"images": 9, "D/loss": float("nan")})
    assert json.loads(path.read_text().splitlines()[1]) == {"images": 9, "D/loss": None}
