"""Finds the process that keeps the others waiting: stopped, hung, or gone without a trace.

Every process tells the store each second that it is alive, and what it is doing.  Whoever has waited too long looks who
is not waiting as well, names it, and ends; the launcher then starts all of them again.
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

from pggan.core.errors import EXIT_LEFT
from pggan.distributed.process_group import World

BEAT_SECONDS = 1.0
SLOW_FACTOR = 20  # what takes long now and then (a checkpoint, a new phase) may take this many times the patience
STEP_FACTOR = 4  # a step may take this many times what the last one took


@dataclass(frozen=True)
class Beat:
    """What a process said last."""

    number: int = 0
    waiting: bool = False
    allowed: float = math.inf  # seconds that the others are to wait for it while it is alive
    place: str = ""  # in the run
    name: str = ""


class Pulse:
    """The beats of all processes, and when each came; without any I/O, and with the time as an argument."""

    def __init__(self, rank: int, names: Sequence[str], patience: float) -> None:
        """Args: names: of all processes."""
        self.rank = rank
        self.patience = patience
        self._last = {other: Beat(place="the start", name=name) for other, name in enumerate(names) if other != rank}
        self._heard = dict.fromkeys(self._last, -math.inf)
        self._looked = -math.inf
        self._awake = -math.inf

    def hear(self, rank: int, beat: Beat, now: float) -> None:
        """Take in what `rank` said last, at `now` seconds; saying the same again is silence."""
        if beat.number != self._last[rank].number:
            self._last[rank], self._heard[rank] = beat, now

    def culprit(self, waiting_since: float | None, now: float) -> str:
        """What to say about the process that keeps this one waiting for too long; empty if there is none."""
        if now - self._looked > self.patience / 2:  # this process did not run itself: it knows nothing
            self._awake = now
        self._looked = now
        if waiting_since is None:
            return ""
        waited = now - max(waiting_since, self._awake)
        # A moment more for each rank, so that the lowest one tells, and not several at once.
        patience = self.patience + BEAT_SECONDS * self.rank
        for rank, beat in self._last.items():
            silent = now - max(self._heard[rank], self._awake)
            if silent <= patience and (beat.waiting or waited <= max(beat.allowed, patience)):
                continue
            if waited > patience:
                does = f"has been silent for {silent:.0f} s" if silent > patience else "does not come to its end"
                where = f"; it was last seen at {beat.place}" if beat.place else ""
                return f"Hung: {beat.name} {does}{where}. The others have waited for {waited:.0f} s, and end."
        return ""


class Watchdog:
    """Two threads that live as long as the block; does nothing where there is one process only."""

    def __init__(
        self, world: World, patience: float, say: Callable[[str], None], end: Callable[[int], Any] = os._exit
    ) -> None:
        """Args: patience: seconds to wait for a process; say: tells people; end: ends this process."""
        self.world = world
        self.patience = patience
        self.say = say
        self.end = end
        self.place = "the start"  # in the run
        self._allowed = math.inf  # preparing data takes as long as it takes
        self._stepped = time.monotonic()
        self._ended = Event()
        self._threads: list[Thread] = []

    def __enter__(self) -> "Watchdog":
        if self.world.store is not None:
            store = self.world.store.clone()  # type: ignore[attr-defined]  # a connection of its own
            pulse = Pulse(self.world.rank, self.world.names, self.patience)
            # Two, because asking a store whose process is stopped takes forever.
            for name, work in (("beat", lambda: self._beat(store, pulse)), ("watchdog", lambda: self._watch(pulse))):
                self._threads.append(Thread(target=work, name=name, daemon=True))
                self._threads[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(BEAT_SECONDS)  # it may still be asking a store that has stopped

    def begin(self) -> None:
        """Training begins: from now on the main thread gets somewhere from time to time."""
        self._allowed, self._stepped = SLOW_FACTOR * self.patience, time.monotonic()

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

    def _beat(self, store: Store, pulse: Pulse) -> None:
        number = 0
        while not self._ended.wait(BEAT_SECONDS):
            number += 1
            waiting = self.world.waiting_since is not None
            mine = Beat(number, waiting, self._allowed, self.place, self.world.name)
            try:
                store.set(f"beat/{self.world.rank}", json.dumps(vars(mine)))
                for rank in range(self.world.size):
                    key = f"beat/{rank}"
                    if rank != self.world.rank and store.check([key]):
                        pulse.hear(rank, Beat(**json.loads(store.get(key))), time.monotonic())
            except RuntimeError:  # the store has gone with the process that kept it
                return

    def _watch(self, pulse: Pulse) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            said = pulse.culprit(self.world.waiting_since, time.monotonic())
            if said:
                self.say(said)
                sys.stderr.flush()
                self.end(EXIT_LEFT)
                return
