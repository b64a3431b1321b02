"""One process per run directory, also when one ends while another begins."""

import json
import os

import pytest

from pggan.core.errors import UserError
from pggan.run import lock
from pggan.run.lock import lock_run_dir


def test_a_lock_file_that_was_removed_before_it_was_locked_is_not_believed(tmp_path, monkeypatch):
    """The run before ends between our opening and our locking its file: then others would lock a new one."""
    try_lock, calls = lock.try_lock, []

    def remove_and_lock(descriptor, *, without_locks):
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / ".lock").unlink()
        return try_lock(descriptor, without_locks=without_locks)

    monkeypatch.setattr(lock, "try_lock", remove_and_lock)
    with lock_run_dir(tmp_path):
        assert len(calls) == 2
        assert json.loads((tmp_path / ".lock").read_text())["pid"] == os.getpid()
        with pytest.raises(UserError, match=f"in use by process {os.getpid()}"), lock_run_dir(tmp_path):
            pass
    assert list(tmp_path.iterdir()) == []


def test_one_that_has_not_said_yet_who_it_is_is_just_starting(tmp_path):
    with lock_run_dir(tmp_path):
        (tmp_path / ".lock").write_text("")
        with pytest.raises(UserError, match="another process that is just starting"), lock_run_dir(tmp_path):
            pass


def test_a_directory_that_was_made_for_nothing_goes_away_again(tmp_path):
    with lock_run_dir(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b").is_dir()
    assert list(tmp_path.iterdir()) == []
    with lock_run_dir(tmp_path / "c"):
        (tmp_path / "c" / "train.log").touch()
    assert [path.name for path in (tmp_path / "c").iterdir()] == ["train.log"]
