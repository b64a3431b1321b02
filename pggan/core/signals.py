"""Ctrl-C, SIGTERM and a scheduler's SIGUSR1 or SIGUSR2 as a wish to stop, so that nothing is lost."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)

Handler = Callable[[int, FrameType | None], None]


@contextmanager
def handling(handler: Handler) -> Iterator[None]:
    """While active, `handler` gets SIGNALS.

    Afterwards, a job launcher's own handlers hear of those that came: to have a job queued again, for one, which must
    wait until all is saved.
    """
    came: dict[int, FrameType | None] = {}

    def hear(number: int, frame: FrameType | None) -> None:
        came[number] = frame
        handler(number, frame)

    before = {number: signal.signal(number, hear) for number in SIGNALS}
    try:
        yield
    finally:
        for number, other in before.items():
            signal.signal(number, other)
        for came_number, frame in came.items():
            other = before[signal.Signals(came_number)]
            if callable(other) and other is not signal.default_int_handler:
                other(came_number, frame)


class Interruption:
    """While active: the first of SIGNALS sets `wanted`; a second SIGINT stops at once.

    As long as there is nothing to save yet, `at_once`, the first one stops at once too.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.wanted = False
        self.at_once = at_once
        self._handling = handling(self._handle)

    def __enter__(self) -> "Interruption":
        self._handling.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handling.__exit__(kind, error, trace)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.wanted = True
