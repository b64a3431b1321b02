"""The directory of a run: one process at a time."""

import json
import os

import pytest

from pggan.core.errors import UserError
from pggan.run.run_dir import lock_run_dir


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
