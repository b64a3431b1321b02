"""The same work on many items, in several processes and behind a progress bar."""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from itertools import islice
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pggan.errors import UserError

Item = TypeVar("Item")
Result = TypeVar("Result")

# Large enough that handing work over costs little, small enough that the results waiting fit into memory.
BATCH = 8
BATCHES_PER_WORKER = 2


@contextmanager
def in_order(
    title: str, function: Callable[[Item], Result], items: Iterable[Item], workers: int, total: int
) -> Iterator[Iterator[Result]]:
    """Gives `function` of every one of `total` items, in their order; a bar on stderr shows the time left.

    With at most one worker everything happens in this process; otherwise `function` and the items must be
    picklable.  Few results wait at any time, so memory does not grow with the number of items.
    Raises UserError when the system kills a worker.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with (
        Progress(*columns, console=Console(stderr=True)) as progress,
        closing(_results(function, iter(items), min(workers, total))) as results,
    ):
        yield iter(progress.track(results, total=total, description=title))


def _results(
    function: Callable[[Item], Result],
    items: Iterator[Item],
    workers: int,
) -> Generator[Result, None, None]:
    if workers <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[list[Result]]] = deque()
    # Spawned, because forking a process that has threads (torch, rich) can lock up.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, context, initializer=_begin_worker)
    try:
        while batch := list(islice(items, BATCH)):
            waiting.append(pool.submit(_apply, function, batch))
            if len(waiting) == BATCHES_PER_WORKER * workers:
                yield from waiting.popleft().result()
        while waiting:
            yield from waiting.popleft().result()
    except BrokenProcessPool as error:
        raise UserError(
            "A worker process was killed, most often because memory ran out.", "Try again with fewer workers."
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _apply(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


def _begin_worker() -> None:
    # Ctrl-C reaches every process of a terminal; the parent alone answers it and ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A worker waits for work on a pipe that it holds open itself, so it would outlive a killed parent.
    parent = multiprocessing.parent_process()
    assert parent is not None, "runs in a worker only"
    parent.join()
    os._exit(1)
