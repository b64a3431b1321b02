"""Ranks that hang or are stopped end themselves; those that are slow for a good reason do not."""

import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from pggan.core.errors import EXIT_PEER_LOST
from pggan.distributed.watchdog import Watchdog

ROOT = Path(__file__).parents[2]
TIMEOUT, WATCHED = 3, 4  # seconds


class Rank:
    """A watched rank of two; `ended` has its exit codes."""

    def __init__(self, *, in_collective=False):
        self.ended, self.said = [], []
        self.group = SimpleNamespace(
            world_size=2, device=torch.device("cpu"), in_collective=in_collective, name="rank 1 on here"
        )
        self.watchdog = Watchdog(self.group, float(TIMEOUT), self.said.append, self.ended.append)


@pytest.mark.slow
@pytest.mark.fault(16)
def test_a_rank_that_takes_no_step_ends_unless_it_may_be_slow():
    hung, preparing, first, drawing = Rank(), Rank(), Rank(), Rank()
    waiting, large = Rank(in_collective=True), Rank(in_collective=True)
    ranks = [hung, preparing, first, waiting, drawing, large]
    for rank in ranks:
        rank.watchdog.__enter__()
    for rank in (hung, first, waiting, drawing, large):
        rank.watchdog.expect_slow_step()
    for rank in (hung, waiting, drawing, large):
        rank.watchdog.stepped()
    with drawing.watchdog.slow():
        while not hung.ended:
            time.sleep(0.1)
        hung.watchdog.__exit__()  # else its guard would end this process
        large.watchdog.stepped()  # after seconds, so its next step may take some, too
        large.group.in_collective = False
        time.sleep(WATCHED + 1)
    time.sleep(1.5)  # what was slow is not held against the next step
    assert [rank.ended for rank in ranks] == [[EXIT_PEER_LOST], [], [], [], [], []]
    assert "rank 1 on here has taken no step for 4 s" in hung.said[0]
    for rank in ranks[1:]:
        rank.watchdog.__exit__()


STOPPED = """
import os, signal, sys, time
from types import SimpleNamespace
from pggan.distributed.watchdog import Watchdog
with Watchdog(SimpleNamespace(world_size=2, in_collective=False, device=None, name=""), 3.0, print) as watchdog:
    time.sleep(1)
    os.kill(os.getpid(), int(sys.argv[1]))
    print("went on")
"""


@pytest.mark.slow
@pytest.mark.fault(16)
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
