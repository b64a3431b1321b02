"""Readers of a command's output that leave: the end of a pipe, and a terminal that is closed."""

import os
import pty
import subprocess
import sys

import pytest

from pggan.core.errors import EXIT_INTERRUPTED
from pggan.run.inspect import facts_of_run

LIMIT_SECONDS = 120


def start(arguments: list[str], **streams: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "train.py", *arguments], start_new_session=True, **streams)


@pytest.mark.rare
def test_a_run_whose_reader_has_seen_enough_goes_on_to_its_end(finished_run, tiny_overrides, tmp_path):
    """As with `pggan train … 2>&1 | head -1`: from the second line on, every write fails."""
    reader, writer = os.pipe()
    process = start([*tiny_overrides, f"run_dir={tmp_path}"], stdout=writer, stderr=writer)
    os.close(writer)
    assert os.read(reader, 1)
    os.close(reader)
    assert process.wait(LIMIT_SECONDS) == 0
    assert facts_of_run(tmp_path)["state_sha256"] == facts_of_run(finished_run)["state_sha256"]
    assert (tmp_path / "train.log").read_text().count("Phase ") == 5


def test_a_run_whose_terminal_is_closed_saves_and_ends(tiny_overrides, tmp_path):
    """It is told by SIGHUP, and what it then writes fails."""
    terminal, side = pty.openpty()
    process = start(
        [*tiny_overrides, "schedule.total_images=80000", f"run_dir={tmp_path}"],
        stdin=side,
        stdout=side,
        stderr=side,
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),  # makes it the terminal of the session
    )
    os.close(side)
    shown = b""
    while b"img/s" not in shown:  # of the first tick
        shown += os.read(terminal, 4096)
    os.close(terminal)
    assert process.wait(LIMIT_SECONDS) == EXIT_INTERRUPTED
    assert facts_of_run(tmp_path)["images"] > 0
    assert "everything is saved" in (tmp_path / "train.log").read_text()
