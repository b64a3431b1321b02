"""The command line in a forked process, with what its launcher gives it."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

STANDARD_STREAMS = 3


def run(arguments: list[str], output: str, environment: dict[str, str], folder: str) -> None:
    """Run `pggan` with `arguments` in `folder`, with more variables; what it says is in the file `output`."""
    os.setsid()
    os.environ.update(environment)
    os.chdir(folder)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

    from pggan.cli.main import main

    SubprocessHandler._popen = lambda self, command, variables: forked_rank(command[1:], variables)
    code = main(arguments)
    sys.stdout.flush()
    sys.exit(code)


class Forked:
    """A function in a process that was forked from one that has imported everything; like a Popen."""

    def __init__(self, method: Any, function: Callable[..., None], *arguments: Any) -> None:
        self.process = method.Process(target=function, args=arguments)
        self.process.start()
        self.pid = int(self.process.pid or 0)

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self.process.join(seconds)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("pggan", seconds or 0)
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)


def forked_rank(command: tuple[str, ...], environment: dict[str, str]) -> Forked:
    """A rank that `pggan train` starts."""
    assert command == ("-m", "pggan")
    return Forked(multiprocessing.get_context("fork"), become_rank, environment)


def become_rank(environment: dict[str, str]) -> None:
    """Take nothing from the parent that a new program would not have."""
    os.setsid()
    os.closerange(STANDARD_STREAMS, os.sysconf("SC_OPEN_MAX"))
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)

    from pggan.cli.main import console

    console()
