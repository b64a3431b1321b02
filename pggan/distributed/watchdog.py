"""Finds the process that keeps the others waiting: stopped, hung, or gone without a trace.

Every process tells the store each second that it is alive, and what it is doing.  Whoever has waited too long looks who
is not waiting as well, names it, and ends; the launcher then starts all of them again.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from pggan.distributed.world import World
from pggan.errors import EXIT_FAILED

BEAT_SECONDS = 1.0
SLOW_FACTOR = 20  # what takes long now and then (a checkpoint, a new phase) may take this many times the patience
STEP_FACTOR = 4  # a step may take this many times what the last one took


class Watchdog:
    """A thread that lives as long as the block; does nothing where there is one process only."""

    def __init__(self, world: World, patience: float, say: Callable[[str], None]) -> None:
        """Args: patience: seconds to wait for a process that should be done; say: tells people."""
        self.world = world
        self.patience = patience
        self.say = say
        self.place = ""  # in the run
        self._allowed = SLOW_FACTOR * patience  # until the first step is done
        self._stepped = time.monotonic()
        self._ended = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> "Watchdog":
        if self.world.store is not None:
            store = self.world.store.clone()  # type: ignore[attr-defined]  # a connection of its own
            self._thread = Thread(target=self._watch, args=(store,), name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def stepped(self, place: str) -> None:
        """A step is done; `place` says where in the run."""
        now = time.monotonic()
        self._allowed = max(self.patience, STEP_FACTOR * (now - self._stepped))
        self._stepped, self.place = now, place

    @contextmanager
    def slow(self) -> Iterator[None]:
        """Around what may take long."""
        before, self._allowed = self._allowed, SLOW_FACTOR * self.patience
        yield
        self._allowed, self._stepped = before, time.monotonic()

    def _watch(self, store: TCPStore) -> None:
        last: dict[int, tuple[str, float]] = {}  # what each process said, and when that was new
        number = 0
        while not self._ended.wait(BEAT_SECONDS):
            number += 1
            waiting = self.world.waiting_since is not None
            beat = {"number": number, "waiting": waiting, "allowed": self._allowed, "place": self.place}
            try:
                store.set(f"beat/{self.world.rank}", json.dumps({**beat, "name": self.world.name}))
                others = [rank for rank in range(self.world.size) if rank != self.world.rank]
                for rank in others:
                    said = store.get(f"beat/{rank}").decode() if store.check([f"beat/{rank}"]) else ""
                    if rank not in last or last[rank][0] != said:
                        last[rank] = said, time.monotonic()
            except RuntimeError:  # the store has gone with the process that kept it, and others will find out soon
                return
            since = self.world.waiting_since
            if since is not None:
                self._look(last, time.monotonic() - since)

    def _look(self, last: dict[int, tuple[str, float]], waited: float) -> None:
        """End this process, having named the culprit, if there is one."""
        now = time.monotonic()
        for rank, (said, since) in last.items():
            beat = json.loads(said) if said else {}
            if beat.get("waiting") and now - since <= self.patience:
                if rank < self.world.rank:
                    return  # that one tells
                continue
            silent = now - since > self.patience
            if waited > (self.patience if silent else float(beat.get("allowed", self.patience))):
                does = f"has been silent for {now - since:.0f} s" if silent else "does not come to the end of its step"
                where = f"; it was last seen at {beat['place']}" if beat.get("place") else ""
                name = beat.get("name", f"process {rank}")
                self.say(f"Hung: {name} {does}{where}. The others have waited for {waited:.0f} s, and end.")
                sys.stderr.flush()
                os._exit(EXIT_FAILED)
