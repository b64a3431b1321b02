"""The running process: version of pggan, environment variables, signals, CPU cores and memory.  Imports no torch."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

__version__ = "0.1.0"
TORCH_WAS_LOADED = "torch" in sys.modules  # if true, torch was imported before `set_library_defaults` could work

COMMAND_VARIABLE = "PGGAN_COMMAND"  # the user's command line
STARTED_VARIABLE = "PGGAN_STARTED"  # time when the user's command started, in seconds since 1970
TASK_VARIABLE = "PGGAN_TASK"  # the command and configuration of a child process `python -m pggan`, as JSON
PARENT_VARIABLE = "PGGAN_PARENT"  # id of the parent process; a child ends when the parent ends

# Training saves and stops at Ctrl-C, at a job scheduler's signal, and when the terminal closes.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # options of `mallopt` (glibc's malloc.h)
SYSTEM = Path("/")  # tests replace this directory


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables inside the `with` block, and restore the old values after the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def set_library_defaults() -> None:
    """Set environment variables of libraries, unless the user has set them; works only before torch is imported."""
    defaults = {
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages make operations on large CPU tensors much faster
        # NCCL hangs if it registers buffers that differ between ranks (https://github.com/NVIDIA/nccl/issues/2389).
        "NCCL_GRAPH_REGISTER": "0",
        "LOGLEVEL": "ERROR",  # without this value, torchrun logs a warning for each signal
        # Without this value, if a rank ends, every other rank prints C++ stack traces.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if "OMP_WAIT_POLICY" not in os.environ:
        # With a third of OpenMP's default spin time, training steps take half as long while other programs use the CPU.
        # If waiting OpenMP threads did not spin at all, a step could take four times as long (docs/performance.md).
        defaults["GOMP_SPINCOUNT"] = "100000"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


def open_in_browser(address: str) -> None:
    """Open `address` in a browser on this machine, in the background; nothing happens if there is no browser."""
    command, nothing = [sys.executable, "-m", "webbrowser", address], subprocess.DEVNULL
    # Without `start_new_session`, a text browser would take over the terminal.
    subprocess.Popen(command, start_new_session=True, stdin=nothing, stdout=nothing, stderr=nothing)  # noqa: S603


def end_with_parent(parent: int) -> None:
    """Wait until the process `parent` ends, then send SIGTERM to this process, which saves and exits."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os.kill(os.getpid(), signal.SIGTERM)


@contextmanager
def signal_handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """In the `with` block, SIGNALS call `handler`.  After the block, call the previous handler of each received signal.

    For example, a job launcher's previous handler requeues the job after training has saved a checkpoint.
    """
    arrived: dict[int, FrameType | None] = {}

    def note_and_handle(number: int, frame: FrameType | None) -> None:
        arrived[number] = frame
        handler(number, frame)

    is_kept = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN  # `nohup` ignores SIGHUP
    numbers = [number for number in SIGNALS if number != signal.SIGHUP or not is_kept]
    before = {number: signal.signal(number, note_and_handle) for number in numbers}
    try:
        yield
    finally:
        for number, other in before.items():
            signal.signal(number, other)
        for number, other in before.items():
            if number in arrived and callable(other) and other is not signal.default_int_handler:
                other(number, arrived[number])


class StopSignal(ExitStack):
    """In the `with` block, the first signal sets `self.wanted` to True; a later Ctrl-C raises KeyboardInterrupt.

    With `at_once`, the first signal raises KeyboardInterrupt; use `at_once` for code that has nothing to save.
    """

    def __init__(self, *, at_once: bool = False, then: Callable[[], str] = str) -> None:
        """`then` is a function that returns KeyboardInterrupt's message, a hint for the user (by default, no hint)."""
        super().__init__()
        self.wanted, self.at_once, self.then = False, at_once, then

    def __enter__(self) -> Self:
        self.enter_context(signal_handlers(self._handle))
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt(self.then())
        self.wanted = True


def available_cores() -> int:
    """The number of CPU cores that this process may use (https://docs.kernel.org/admin-guide/cgroup-v2.html)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = Path("sys/fs/cgroup", named_values("proc/self/cgroup", "::").get("0", "").lstrip("/"))
    quotas = [system_file(f"{group}/cpu.max").split() for group in (own, *own.parents)]  # quota and period
    return min([cores, *(max(-(-int(one[0]) // int(one[1])), 1) for one in quotas if one and one[0] != "max")])


def system_file(name: str) -> str:
    """The text of a file in /proc or /sys; an empty string if the file can't be read."""
    try:
        return (SYSTEM / name).read_text().strip()
    except OSError:
        return ""


def named_values(name: str, separator: str) -> dict[str, str]:
    """Read {key: value} from a file of lines `key separator value` in /proc or /sys, up to the first empty line."""
    lines = system_file(name).partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(separator) for line in lines)}


def threads_per_rank(ranks: int, *, elastic: bool) -> int:
    """CPU threads per rank: cores / `ranks`, but 1 if `elastic`, so that rounding errors don't depend on `ranks`."""
    return 1 if elastic else max(1, available_cores() // ranks)


def processor_facts() -> dict[str, str]:
    """The processor's model, vendor, family and instruction sets; empty texts stand for unknown values."""
    found = {"model name": platform.processor() or platform.machine(), "vendor_id": "", "cpu family": "", "flags": ""}
    return found | named_values("proc/cpuinfo", ":")


def keep_freed_memory() -> None:
    """Make glibc keep and reuse freed memory, because the system needs 14 ms to provide 35 MB of new memory."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # with -1, glibc never returns free memory to the system
