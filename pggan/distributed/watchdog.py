"""Ends a rank that hangs or is stopped, so that torchrun restarts all ranks from the last checkpoint.

A thread counts the seconds since the last step.  A second process kills a rank that is stopped as a whole, which has no
thread that runs.  Ranks that wait for such a one lose their connection to it, and end, too.  Seconds are counted by
looking once in each, so that none go by while the machine sleeps.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from math import inf
from subprocess import PIPE, Popen
from threading import Event, Thread
from typing import Any

from pggan.core.errors import EXIT_PEER_LOST
from pggan.core.text import Log
from pggan.distributed.process_group import ProcessGroup

SLOW_FACTOR = 20  # a checkpoint, an evaluation, a slow step of another rank may take this many times the timeout
STEP_FACTOR = 4  # a step may take this many times what the last one took
# Reads a byte each second; without one for too long, it kills the rank.
GUARD = """
import os, select, signal, sys
for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2:
    signal.signal(number, signal.SIG_IGN)
rank, timeout, silent = int(sys.argv[1]), float(sys.argv[2]), 0
while silent < timeout:
    if not select.select([0], [], [], 1)[0]:
        silent += 1
    elif os.read(0, 4096):
        silent = 0
    else:
        sys.exit()
os.kill(rank, signal.SIGKILL)
"""


class Watchdog:
    """Watches this rank as long as the block lasts; does nothing where there is one rank only."""

    def __init__(self, group: ProcessGroup, timeout: float, log: Log, end: Callable[[int], Any] = os._exit) -> None:
        """Args: timeout: seconds without a step; end: ends this process with an exit code."""
        self.group, self.timeout, self.log, self.end = group, timeout, log, end
        self._waited, self._allowed = 0, inf  # seconds; until training begins, there need be no steps
        self._over = Event()

    def __enter__(self) -> "Watchdog":
        if self.group.world_size > 1:
            command = [sys.executable, "-IS", "-c", GUARD, str(os.getpid()), str(self.timeout)]
            self._guard = Popen(command, stdin=PIPE, start_new_session=True)  # noqa: S603 - this Python
            assert self._guard.stdin is not None, "it is a pipe"
            self._pipe = self._guard.stdin.fileno()
            self._thread = Thread(target=self._watch, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self.group.world_size > 1:
            self._thread.join()
            self._guard.communicate()

    def expect_slow_step(self) -> None:
        """From now on, there have to be steps; the next one may take longer, as the first of a phase does."""
        self._waited, self._allowed = 0, SLOW_FACTOR * self.timeout

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Give what happens inside more time."""
        before, self._allowed = self._allowed, max(self._allowed, SLOW_FACTOR * self.timeout)
        yield
        self._allowed, self._waited = before, 0

    def stepped(self) -> None:
        """A step is done."""
        is_usual = self._allowed < SLOW_FACTOR * self.timeout
        self._allowed = max(self.timeout, STEP_FACTOR * self._waited * is_usual)
        self._waited = 0

    def _watch(self) -> None:
        while not self._over.wait(1):
            with suppress(OSError):  # somebody has killed it
                os.write(self._pipe, b".")
            # Another rank may be slow for good reasons, which this one does not know.  GPUs wait for it anywhere.
            others = self.group.in_collective or self.group.device.type == "cuda"
            self._waited += 1
            if self._waited > max(self._allowed, SLOW_FACTOR * self.timeout * others):
                self.log(f"{self.group.name} has taken no step for {self._waited} s, and ends.")
                self.end(EXIT_PEER_LOST)
                return
