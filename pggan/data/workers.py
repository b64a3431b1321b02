"""Apply a function to many items in worker processes, with a progress bar."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from pggan.core.errors import UserError
from pggan.core.process import SIGNALS, available_cores, end_with_parent, keep_freed_memory

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_WORKERS = 16  # by default, num_workers= is at most 16
MAX_BATCH = 8  # a worker gets at most 8 items at once; sending single items would be slower


class Workers(AbstractContextManager["Workers"]):
    """A pool of `count` worker processes (default: one per core, up to 16); if `count` is 1, no workers are used."""

    def __init__(self, count: int | None = None) -> None:
        keep_freed_memory()
        self.count = count or min(available_cores(), MAX_WORKERS)
        # Workers are spawned, because forking a process that has threads (torch, rich) can deadlock.
        self._pool = ProcessPoolExecutor(self.count, multiprocessing.get_context("spawn"), _begin)
        if self.count > 1:
            # Workers inherit SIG_IGN, so that only this process reacts to Ctrl-C and to signals of job schedulers.
            before = {number: signal.signal(number, signal.SIG_IGN) for number in {*SIGNALS} - {signal.SIGTERM}}
            for _ in range(self.count):  # each `submit` starts a worker
                self._pool.submit(int)
            for number, handler in before.items():
                signal.signal(number, handler)

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def in_order(self, title: str, function: Callable[[Item], Result], items: Sequence[Item]) -> Iterator[Result]:
        """Yield `function(item)` for each item in order, and show progress; raises UserError if a worker is killed."""
        results: Iterator[Result] = map(function, items)
        try:
            if min(self.count, len(items)) > 1:
                size = max(1, min(MAX_BATCH, len(items) // (4 * self.count)))
                results = self._pool.map(function, items, chunksize=size)
            yield from track(results, title, len(items), console=Console(stderr=True))
        except BrokenProcessPool as error:
            raise UserError(
                "A worker process was killed, most often because memory ran out.",
                "Free some memory, or run `pggan prepare` with a smaller num_workers= (fewer workers). "
                'A Python script has to call pggan below `if __name__ == "__main__":`.',
            ) from error


def _begin() -> None:
    keep_freed_memory()
    # Without this thread, workers would outlive a killed parent, because they hold both ends of the pipe of tasks.
    threading.Thread(target=end_with_parent, args=[os.getppid()], daemon=True).start()
