"""Ctrl-C and SIGTERM as a wish to stop after the current step, so that nothing is lost."""

import signal
from types import FrameType, TracebackType


class Interruption:
    """While active: the first SIGINT or SIGTERM sets `wanted`; a second SIGINT stops at once."""

    def __init__(self) -> None:
        self.wanted = False
        self._before: dict[int, signal._HANDLER] = {}

    def __enter__(self) -> "Interruption":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.wanted and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.wanted = True
