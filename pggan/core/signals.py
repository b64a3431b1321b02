"""Ctrl-C, SIGTERM, a scheduler's SIGUSR1 or SIGUSR2, and SIGHUP of a closed terminal, as a request to save and stop."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
CHILD_BLOCKED_SIGNALS = [number for number in SIGNALS if number != signal.SIGTERM]  # by which a parent ends them


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


@contextmanager
def block_signals_in_children() -> Iterator[None]:
    """Processes started inside, by this thread, never see CHILD_BLOCKED_SIGNALS; this process does when the block ends.

    A terminal and a scheduler send them to all processes of a command, of which one alone saves and stops.  A blocked
    signal stays blocked in what is started, from its first instruction on: no handler could be there as early.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_BLOCKED_SIGNALS)
    resource_tracker.ensure_running()  # multiprocessing's own process; starting it lets SIGINT through again
    signal.pthread_sigmask(signal.SIG_BLOCK, CHILD_BLOCKED_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def interrupt_message(message: Callable[[], str]) -> Iterator[None]:
    """Add what `message` returns to a KeyboardInterrupt that leaves the block: what is left, and how to resume.

    In a block within another one, it comes first.
    """
    try:
        yield
    except KeyboardInterrupt as interrupt:
        raise KeyboardInterrupt(*interrupt.args, message()) from interrupt


class StopSignal(ExitStack):
    """A context in which the first of SIGNALS sets `wanted`, and a second SIGINT raises KeyboardInterrupt.

    With `at_once`, as long as there is nothing to save, the first one raises it too.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        super().__init__()
        self.wanted = False
        self.at_once = at_once

    def __enter__(self) -> Self:
        self.enter_context(signal_handlers(self._handle))
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.wanted = True
