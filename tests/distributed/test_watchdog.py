"""A rank that is stopped is killed; one that is not, goes on."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

STOPPED = """
import os, signal, sys, time
from pggan.distributed.launch import killed_if_stopped
with killed_if_stopped(3.0):
    time.sleep(5)
    os.kill(os.getpid(), int(sys.argv[1]))
    print("went on")
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="looks at /proc")
def test_a_stopped_rank_is_killed_and_its_guard_ends_with_any_rank():
    def started(number: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-c", STOPPED, str(number)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )

    stopped, well = started(signal.SIGSTOP), started(signal.SIGCONT)
    assert stopped.communicate(timeout=60)[0] == ""
    assert well.communicate(timeout=60)[0] == "went on\n"
    assert (stopped.returncode, well.returncode) == (-signal.SIGKILL, 0)
    for _ in range(100):
        if not (left := guards_of(stopped.pid) + guards_of(well.pid)):
            break
        time.sleep(0.1)
    assert not left


def guards_of(pid: int) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended
            words = path.read_bytes().decode(errors="replace").split("\0")
            if "-IS" in words and str(pid) in words:
                found.append(path.parent.name)
    return found
