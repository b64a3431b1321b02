"""Ctrl-C, SIGTERM and a scheduler's SIGUSR1 or SIGUSR2 as a wish to stop, so that nothing is lost."""

import signal
from types import FrameType, TracebackType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


class Interruption:
    """While active: the first of SIGNALS sets `wanted`; a second SIGINT stops at once.

    As long as there is nothing to save yet, `at_once`, the first one stops at once too.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.wanted = False
        self.at_once = at_once
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Interruption":
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.at_once or (self.wanted and number == signal.SIGINT):
            raise KeyboardInterrupt
        self.wanted = True
