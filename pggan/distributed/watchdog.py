"""Kills a rank that is stopped as a whole, so that torchrun restarts all ranks from the last checkpoint.

The other ranks lose their connection to it, and end, too.  A rank that hangs while its process runs is not noticed
here, but by those that wait for it: torch's collectives fail after half an hour.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from threading import Event, Thread

# Reads a byte each second; without one for too long, it kills the rank.  It looks once in each second, so that none go
# by while the machine sleeps.
GUARD = """
import os, select, signal, sys
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


@contextmanager
def killed_if_stopped(timeout: float) -> Iterator[None]:
    """Inside, a second process kills this one when it has been stopped for `timeout` seconds."""
    command = [sys.executable, "-IS", "-c", GUARD, str(os.getpid()), str(timeout)]
    guard = Popen(command, stdin=PIPE, start_new_session=True)  # noqa: S603 - this Python
    assert guard.stdin is not None, "it is a pipe"
    pipe, over = guard.stdin.fileno(), Event()

    def beat() -> None:
        while not over.wait(1):
            with suppress(OSError):  # somebody has killed it
                os.write(pipe, b".")

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        guard.communicate()
