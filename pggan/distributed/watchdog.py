"""Kills a rank whose process is stopped (SIGSTOP), so that torchrun restarts all ranks.

`ProcessGroup.end_if_stalled` and timeouts of collectives end ranks that hang while their processes run.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from subprocess import PIPE, Popen
from threading import Event, Thread

# A second process runs this program, which kills a rank that has sent no byte for `timeout` seconds.
# The program counts seconds itself, because a clock goes on while the machine is suspended.
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
    """A second process kills this process if SIGSTOP stops this process for `timeout` seconds in the `with` block."""
    command = [sys.executable, "-IS", "-c", GUARD, str(os.getpid()), str(timeout)]
    guard = Popen(command, stdin=PIPE, start_new_session=True)  # noqa: S603 - runs this Python
    assert guard.stdin is not None, "stdin is a pipe"
    pipe, over = guard.stdin.fileno(), Event()

    def beat() -> None:
        while not over.wait(1):
            with suppress(OSError):  # The second process may have been killed.
                os.write(pipe, b".")

    thread = Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        guard.communicate()
