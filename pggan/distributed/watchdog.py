"""Finds the stalled rank that keeps the others waiting: stopped, hung, or gone without a trace.

Every rank sends a heartbeat to the store each second, which says what it is doing.  A rank that has waited too long
looks which one is not waiting as well, names it, and ends; the agent then restarts all of them.  A rank that waits for
its own GPU may wait for another rank there.  Where all wait for their GPUs, they end after the time of a slow step.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

from pggan.core.errors import EXIT_PEER_LOST
from pggan.core.formatting import Log
from pggan.distributed.process_group import ProcessGroup

HEARTBEAT_SECONDS = 1.0
SLOW_FACTOR = 20  # a checkpoint, the first step of a phase, or work of all GPUs may take this many times the timeout
STEP_FACTOR = 4  # a step may take this many times what the last one took


@dataclass(frozen=True)
class Heartbeat:
    """The last message of a rank about itself."""

    number: int = 0
    waiting: bool = False
    allowed: float = math.inf  # seconds that the others are to wait for it while it is alive
    position: str = "the start"  # in the run
    name: str = ""


class HeartbeatMonitor:
    """The heartbeats of all ranks, and when each came; without any I/O, and with the time as an argument."""

    def __init__(self, rank: int, names: Sequence[str], timeout: float) -> None:
        """Args: names: of all ranks."""
        self.rank, self.timeout = rank, timeout
        self._last = {other: Heartbeat(name=name) for other, name in enumerate(names) if other != rank}
        self._heard = dict.fromkeys(self._last, -math.inf)
        self._looked = self._awake = -math.inf

    def hear(self, rank: int, beat: Heartbeat, now: float) -> None:
        """Take in the last heartbeat of `rank`, at `now` seconds; the same number again is silence."""
        if beat.number != self._last[rank].number:
            self._last[rank], self._heard[rank] = beat, now

    def stalled_rank(
        self, waiting_since: float | None, now: float, *, on_device: bool = False, stuck_since: float | None = None
    ) -> str:
        """The message about the stalled rank that this one has waited for too long; empty if there is none.

        Args: on_device: it waits for its own device, which may wait for another rank; stuck_since: when its main thread
        was last seen, if that is longer ago than it may be: the queue of its device may be full.
        """
        if now - self._looked > self.timeout / 2:  # this process did not run itself: it knows nothing
            self._awake = now
        self._looked = now
        waited, stuck = (
            0.0 if since is None else now - max(since, self._awake) for since in (waiting_since, stuck_since)
        )
        # A moment more for each rank, so that the lowest one reports, and not several at once.
        timeout = self.timeout + HEARTBEAT_SECONDS * self.rank
        for rank, beat in self._last.items():
            silent = now - max(self._heard[rank], self._awake)
            gone = silent > timeout and max(waited, stuck) > timeout
            if gone or (not beat.waiting and waited > max(timeout, beat.allowed)):
                does = f"has been silent for {silent:.0f} s" if silent > timeout else "makes no progress"
                seen = f"{beat.name} {does}; it was last seen at {beat.position}"
                return f"Stalled: {seen}. The others have waited for {max(waited, stuck):.0f} s and exit."
        if on_device and waited > SLOW_FACTOR * self.timeout + HEARTBEAT_SECONDS * self.rank:
            return (
                f"Stalled: no rank is missing, but the device of rank {self.rank} has not moved for {waited:.0f} s. "
                "NCCL_DEBUG=INFO tells more, and compute.cuda_graphs=off captures no collectives. Where the links are "
                "that slow, a larger distributed.heartbeat_timeout_seconds waits longer."
            )
        return ""


class Watchdog:
    """Two threads that live as long as the block; does nothing where there is one rank only."""

    def __init__(self, group: ProcessGroup, timeout: float, log: Log, end: Callable[[int], Any] = os._exit) -> None:
        """Args: timeout: seconds to wait for a rank; end: ends this process with an exit code."""
        self.group, self.timeout, self.log, self.end = group, timeout, log, end
        self.position = "the start"  # in the run
        self._allowed = math.inf  # preparing data takes as long as it takes
        self._slow_step = False
        self._stepped = time.monotonic()
        self._ended = Event()
        self._threads: list[Thread] = []

    def __enter__(self) -> "Watchdog":
        if self.group.store is not None:
            store = self.group.store.clone()  # a connection of its own
            monitor = HeartbeatMonitor(self.group.rank, self.group.names, self.timeout)
            self._threads = [  # two, because asking a store whose process is stopped takes forever
                Thread(target=self._send, args=(store, monitor), name="heartbeat", daemon=True),
                Thread(target=self._watch, args=(monitor,), name="watchdog", daemon=True),
            ]
            for thread in self._threads:
                thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(HEARTBEAT_SECONDS)  # it may still be asking a store that has stopped

    def begin(self) -> None:
        """Training begins: from now on, the main thread has to make progress."""
        self._allowed, self._stepped = SLOW_FACTOR * self.timeout, time.monotonic()

    def expect_slow_step(self) -> None:
        """Give the next step more time: the first of a phase compiles, captures or tries kernels."""
        self._slow_step, self._allowed = True, SLOW_FACTOR * self.timeout

    def stepped(self, position: str) -> None:
        """A step is done; `position` says where the run is."""
        now = time.monotonic()
        duration = 0.0 if self._slow_step else now - self._stepped
        self._allowed, self._slow_step = max(self.timeout, STEP_FACTOR * duration), False
        self._stepped, self.position = now, position

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Give what happens inside more time."""
        before, self._allowed = self._allowed, SLOW_FACTOR * self.timeout
        yield
        self._allowed, self._stepped = before, time.monotonic()

    def _send(self, store: Store, monitor: HeartbeatMonitor) -> None:
        number = 0
        while not self._ended.wait(HEARTBEAT_SECONDS):
            number += 1
            waiting = self.group.waiting_since is not None
            mine = Heartbeat(number, waiting, self._allowed, self.position, self.group.name)
            try:
                store.set(f"heartbeat/{self.group.rank}", json.dumps(vars(mine)))
                for rank in range(self.group.world_size):
                    key = f"heartbeat/{rank}"
                    if rank != self.group.rank and store.check([key]):
                        monitor.hear(rank, Heartbeat(**json.loads(store.get(key))), time.monotonic())
            except RuntimeError:  # the store has gone with the process that kept it
                return

    def _watch(self, monitor: HeartbeatMonitor) -> None:
        while not self._ended.wait(HEARTBEAT_SECONDS):
            now, on_device = time.monotonic(), self.group.waits_for_device
            stuck_since = self._stepped if now - self._stepped > self._allowed else None
            since = self.group.waiting_since
            if message := monitor.stalled_rank(since, now, on_device=on_device, stuck_since=stuck_since):
                self.log(message)
                sys.stderr.flush()
                self.end(EXIT_PEER_LOST)
                return
