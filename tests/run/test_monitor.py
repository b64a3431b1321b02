"""`pggan monitor`: which run it shows, and what it refuses."""

import os
import socket
from pathlib import Path

import pytest

from pggan.config.commands import MonitorConfig
from pggan.core.errors import UserError
from pggan.run import monitor


def run_at(outputs: Path, name: str, seconds: float) -> Path:
    file = outputs / name / "events.out.tfevents.1.host.1"
    file.parent.mkdir(parents=True)
    file.touch()
    os.utime(file, (seconds, seconds))
    return file.parent


def test_the_newest_run_is_the_one_written_to_last(tmp_path):
    newest = run_at(tmp_path, "faces/b", 2000.0)
    run_at(tmp_path, "faces/c", 1000.0)
    assert monitor.newest_run(tmp_path) == newest


def test_a_folder_without_a_run_is_refused(tmp_path):
    for folder in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(UserError, match="There is no run in"):
            monitor.newest_run(folder)


def test_a_port_that_is_taken_is_named(finished_run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = MonitorConfig(run=str(finished_run), host="127.0.0.1", port=port, open=False)
        with pytest.raises(UserError, match=f"host=127.0.0.1 port={port}"):
            monitor.run(config)
