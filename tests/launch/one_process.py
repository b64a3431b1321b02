"""The command line in a forked process, with what its launcher gives it; started by `Forked`."""

import multiprocessing
import os
import signal
import subprocess
import sys

from torch.distributed.elastic.multiprocessing.subprocess_handler.subprocess_handler import SubprocessHandler

STANDARD_STREAMS = 3


def run(arguments: list[str], output: str, environment: dict[str, str], folder: str) -> None:
    """Run `pggan` with `arguments`; the others are as in `Forked`."""
    os.setsid()
    os.environ.update(environment)
    os.chdir(folder)
    with open(output, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)

    from pggan.cli.main import main

    SubprocessHandler._popen = lambda self, command, variables: ForkedRank(command[1:], variables)
    code = main(arguments)
    sys.stdout.flush()
    sys.exit(code)


class ForkedRank:
    """A rank that `pggan train` starts, forked from it instead of importing everything again; like a Popen."""

    def __init__(self, command: tuple[str, ...], environment: dict[str, str]) -> None:
        assert command == ("-m", "pggan")
        self.process = multiprocessing.get_context("fork").Process(target=become_rank, args=(environment,))
        self.process.start()
        self.pid = self.process.pid

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, seconds: float | None = None) -> int:
        self.process.join(seconds)
        if self.process.exitcode is None:
            raise subprocess.TimeoutExpired("pggan", seconds or 0)
        return self.process.exitcode


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
