"""The version, and environment variables: what libraries read when loaded, what all processes of a command know."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

__version__ = "0.1.0"

COMMAND_VARIABLE = "PGGAN_COMMAND"  # the command line, as the program and all of its ranks have it
STARTED_VARIABLE = "PGGAN_STARTED"  # when it was given, in seconds since 1970
TASK_VARIABLE = "PGGAN_TASK"  # of `python -m pggan` as a child: the command to run and its configuration, as YAML
PARENT_VARIABLE = "PGGAN_PARENT"  # of a child: the process id of its parent, with which it ends
RANKS_VARIABLE = "PGGAN_RANKS"  # of a rank: the folder in which it and its parent leave each other notes
LOG_LEVEL = "ERROR"  # of torch's C++ code


def child_variables(command: str, values: dict[str, Any]) -> dict[str, str]:
    """The variables with which `python -m pggan` runs `command` with composed `values`, as a child of this process."""
    from omegaconf import OmegaConf

    task = OmegaConf.to_yaml(OmegaConf.create({"command": command, "values": values}))
    return {TASK_VARIABLE: task, PARENT_VARIABLE: str(os.getpid())}


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for this process, and for those that it starts inside."""
    before = {name: os.environ[name] for name in variables if name in os.environ}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


def cache_folder(name: str = "") -> Path:
    """The folder of what can be made again: ~/.cache/pggan, or `name` in it; below XDG_CACHE_HOME where that is set."""
    try:
        parent = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # a user without a home, as in some containers
        parent = Path(tempfile.gettempdir())
    return parent / "pggan" / name


def set_library_defaults() -> None:
    """Set what the user has not; takes effect in this process and its children when it runs before torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        # How often a thread of GNU's OpenMP looks for work before it sleeps: a third of GNU's own number.  Steps take
        # half the time on a shared machine, and as long as before on a quiet one; where threads sleep at once, they
        # take up to four times as long (docs/performance.md).
        os.environ.setdefault("GOMP_SPINCOUNT", "100000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages for large CPU tensors, much faster
    # Captured collectives need no registered buffers: gradients are small, and where ranks differ in what is
    # registered, NCCL waits for ever (https://github.com/NVIDIA/nccl/issues/2389).
    os.environ.setdefault("NCCL_GRAPH_REGISTER", "0")
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # a profile needs no log of its own
    os.environ.setdefault("LOGLEVEL", "ERROR")  # torchrun warns of each signal that it sends
    # A rank that loses another one prints a C++ stack per connection; the watchdog says what matters in one line.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", LOG_LEVEL)
