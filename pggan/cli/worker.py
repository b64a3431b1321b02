"""One of the ranks that a command starts: `python -m pggan` with the command in the environment."""

import os
import signal
import time
from threading import Thread
from typing import NoReturn

from omegaconf import OmegaConf

from pggan.cli.commands import COMMANDS
from pggan.cli.main import guarded, run_command, run_process
from pggan.core.environment import PARENT_VARIABLE, TASK_VARIABLE

POLL_SECONDS = 0.5


def end_with_parent(parent: int) -> None:
    """Make this process save and end when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(POLL_SECONDS)
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> int:
    """Run the command that the parent put into the environment; returns the exit code."""
    task = OmegaConf.to_container(OmegaConf.create(os.environ.pop(TASK_VARIABLE)))
    assert isinstance(task, dict), "the parent writes keys and values"
    Thread(target=end_with_parent, args=(int(os.environ[PARENT_VARIABLE]),), name="parent", daemon=True).start()
    return guarded(lambda: run_command(COMMANDS[task["command"]], task["values"]))


def console() -> NoReturn:
    """The process of a rank."""
    run_process(main)
