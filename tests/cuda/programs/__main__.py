"""Runs programs of this folder as they are asked for, each in a process forked from this one.

This one has imported what they need, which takes longer than some of them.  A line of standard input is JSON: the name,
the arguments, and a file for what the program prints.  A line of standard output is an exit code.
"""

import gc
import json
import os
import runpy
import signal
import sys
from importlib import import_module

NEEDED = ("pggan.run.train", "tests.cuda.programs.trainers", "torch._dynamo")
SECONDS = 3600  # that a program may take


def become(name: str, arguments: list[str], output: str) -> None:
    """Run the program in this process."""
    signal.alarm(SECONDS)
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, sys.stdout.fileno())
    sys.argv[1:] = arguments
    runpy.run_module(f"tests.cuda.programs.{name}", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    for name in NEEDED:
        import_module(name)
    gc.freeze()  # every capture looks through all objects for garbage, and those of libraries stay
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            become(*json.loads(line))
            gc.unfreeze()  # else libraries report at the end that it has not been cleared away
            break
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
