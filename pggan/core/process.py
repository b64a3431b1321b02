"""The process: its version, environment variables, signals, CPU cores and memory.  Without torch."""

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Self

__version__ = "0.1.0"

COMMAND_VARIABLE = "PGGAN_COMMAND"  # the command line, as the program and all of its ranks have it
STARTED_VARIABLE = "PGGAN_STARTED"  # when it was given, in seconds since 1970
TASK_VARIABLE = "PGGAN_TASK"  # of `python -m pggan` as a child: the command to run and its configuration, as JSON
PARENT_VARIABLE = "PGGAN_PARENT"  # of a child: the process id of its parent, with which it ends

# Each is a request to save and stop: Ctrl-C, a scheduler's signals, a closed terminal.
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt: free memory kept at the top; blocks mapped one by one
SYSTEM = Path("/")  # where Linux has its files about processes


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Set environment variables for this process, and for those that it starts inside."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})


def set_library_defaults() -> None:
    """Set what the user has not; takes effect in this process and its children when it runs before torch is loaded."""
    defaults = {
        "THP_MEM_ALLOC_ENABLE": "1",  # huge pages for large CPU tensors, much faster
        # Captured collectives need no registered buffers: gradients are small, and where ranks differ in what is
        # registered, NCCL waits for ever (https://github.com/NVIDIA/nccl/issues/2389).
        "NCCL_GRAPH_REGISTER": "0",
        "LOGLEVEL": "ERROR",  # torchrun warns of each signal that it sends
        # A rank that loses another one prints a C++ stack per connection; ours says what matters in one line.
        "TORCH_CPP_LOG_LEVEL": "ERROR",
    }
    if "OMP_WAIT_POLICY" not in os.environ:
        # How often a thread of GNU's OpenMP looks for work before it sleeps: a third of GNU's own number.  Steps take
        # half the time on a shared machine, and as long as before on a quiet one; where threads sleep at once, they
        # take up to four times as long (docs/performance.md).
        defaults["GOMP_SPINCOUNT"] = "100000"
    for name, value in defaults.items():
        os.environ.setdefault(name, value)


@contextmanager
def signal_handlers(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call `handler` for SIGNALS inside the block; for SIGHUP, unless `nohup` has this process ignore it.

    Afterwards the handlers of before are called for those that arrived: a job launcher's handler, which has the job
    queued again, must wait until all is saved.
    """
    arrived: dict[int, FrameType | None] = {}

    def note_and_handle(number: int, frame: FrameType | None) -> None:
        arrived[number] = frame
        handler(number, frame)

    is_kept = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
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
    """A context in which the first of SIGNALS sets `wanted`, and a second SIGINT raises KeyboardInterrupt.

    With `at_once`, as long as there is nothing to save, the first one raises it too.
    """

    def __init__(self, *, at_once: bool = False, then: Callable[[], str] = str) -> None:
        """Args: then: says how to go on after a KeyboardInterrupt."""
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
    """CPU cores that this process may use, or as many as its control groups, such as a container, give it the time of.

    Source: https://docs.kernel.org/admin-guide/cgroup-v2.html
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    own = Path("sys/fs/cgroup", named_values("proc/self/cgroup", "::").get("0", "").lstrip("/"))
    quotas = [system_file(f"{group}/cpu.max").split() for group in (own, *own.parents)]  # microseconds; of how many
    return min([cores, *(max(-(-int(one[0]) // int(one[1])), 1) for one in quotas if one and one[0] != "max")])


def system_file(name: str) -> str:
    """The text of a file of the system, without the newline at its end; none where it is not there."""
    try:
        return (SYSTEM / name).read_text().strip()
    except OSError:
        return ""


def named_values(name: str, separator: str) -> dict[str, str]:
    """The lines `name separator value` of a file of the system, up to the first empty one."""
    lines = system_file(name).partition("\n\n")[0].splitlines()
    return {key.strip(): value.strip() for key, _, value in (line.partition(separator) for line in lines)}


def threads_per_rank(ranks: int, *, elastic: bool) -> int:
    """CPU threads for each of the `ranks` on this machine; 1 if `elastic`: several would add up in another order."""
    return 1 if elastic else max(1, available_cores() // ranks)


def processor_facts() -> dict[str, str]:
    """The model and family of the processor, its maker and its instruction sets, as far as the system names them."""
    found = {"model name": platform.processor() or platform.machine(), "vendor_id": "", "cpu family": "", "flags": ""}
    return found | named_values("proc/cpuinfo", ":")


def keep_freed_memory() -> None:
    """Let the C library (glibc) keep freed memory: blocks of 35 MB from the system take 14 ms, page by page."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, -1)  # never
