"""A function of many items, in several processes and with a progress bar."""

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager
from itertools import islice
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pggan.core.cpu import keep_freed_memory
from pggan.core.errors import UserError
from pggan.core.signals import block_signals_in_children

Item = TypeVar("Item")
Result = TypeVar("Result")

# Large enough that handing work over costs little, small enough that the results waiting fit into memory.
MAX_BATCH = 8
BATCHES_FOR_EACH = 4  # at least, where there are so many items: a few large ones must not all go to the same worker
BATCHES_PER_WORKER = 2


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Worker processes, started when there is work; with a `count` of 0 or 1, work is done in this process."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool: ProcessPoolExecutor | None = None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def in_order(
        self, title: str, function: Callable[[Item], Result], items: Iterable[Item], total: int
    ) -> Iterator[Result]:
        """Gives `function` of every one of `total` items, in their order; a bar on stderr shows the time left.

        With several workers, `function` and the items must be picklable.  Few results wait at any time, so memory does
        not grow with the number of items.  Raises UserError when the system kills a worker.
        """
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True)) as progress:
            yield from progress.track(self._results(function, iter(items), total), total=total, description=title)

    def _results(self, function: Callable[[Item], Result], items: Iterator[Item], total: int) -> Iterator[Result]:
        if min(self.count, total) <= 1:
            yield from map(function, items)
            return
        size = max(1, min(MAX_BATCH, total // (BATCHES_FOR_EACH * self.count)))
        waiting: deque[Future[list[Result]]] = deque()
        try:
            while batch := list(islice(items, size)):
                waiting.append(self._submit(function, batch))
                if len(waiting) == BATCHES_PER_WORKER * self.count:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        except BrokenProcessPool as error:
            raise UserError(
                "A worker process was killed, most often because memory ran out.",
                "Free some memory, or use fewer: `pggan prepare` with a smaller num_workers=.",
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, function: Callable[[Item], Result], batch: list[Item]) -> Future[list[Result]]:
        with block_signals_in_children():  # the pool starts a worker when there is work for it
            if self._pool is None:
                # Spawned, because forking a process that has threads (torch, rich) can lock up.
                context = multiprocessing.get_context("spawn")
                self._pool = ProcessPoolExecutor(self.count, context, initializer=_begin_worker)
            return self._pool.submit(_apply, function, batch)


def _apply(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


def _begin_worker() -> None:
    keep_freed_memory()
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A worker waits for work on a pipe that it holds open itself, so it would outlive a killed parent.
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"
    parent.join()
    os._exit(1)
