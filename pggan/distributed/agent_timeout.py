"""Ends what would wait for ever: a main thread that asks a machine which was cut off without a word."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

LOOK_SECONDS = 1.0


@contextmanager
def watching(turns: Callable[[], int], allowed: Callable[[], float], end: Callable[[], None]) -> Iterator[None]:
    """While active, call `end` when `turns` has stayed the same for as many seconds as are `allowed` at the time.

    `turns` counts what the main thread does over and over.  Seconds are counted by looking: while this whole process is
    stopped, none go by.
    """
    over = Event()

    def watch() -> None:
        seen, silent = turns(), 0.0
        while not over.wait(LOOK_SECONDS):
            now = turns()
            silent = silent + LOOK_SECONDS if now == seen else 0.0
            seen = now
            if silent > allowed():
                end()
                return

    Thread(target=watch, name="contact", daemon=True).start()
    try:
        yield
    finally:
        over.set()
