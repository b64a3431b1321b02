"""Who keeps the others waiting: found by beats alone, with made-up clocks and stores."""

import json
import math
import threading
import time

import pytest
import torch

from pggan.core.errors import EXIT_LEFT
from pggan.distributed.process_group import ProcessGroup, RankInfo
from pggan.distributed.watchdog import HEARTBEAT_SECONDS, SLOW_FACTOR, Heartbeat, HeartbeatMonitor, Watchdog

PATIENCE = 45.0


class Clock:
    """Processes that beat each second, seen by one of them that waits."""

    def __init__(self, size=2, rank=0, waiting_since=100.0):
        self.pulse = HeartbeatMonitor(rank, [f"process {other}" for other in range(size)], PATIENCE)
        self.now, self.number = 100.0, 0
        self.waiting_since = waiting_since
        self.pulse.stalled_rank(None, self.now)
        self.beats = {other: Heartbeat(waiting=True, name=f"process {other}") for other in range(size) if other != rank}

    def pass_by(self, seconds, silent=()):
        """What is said first within so many seconds, and when."""
        for _ in range(int(seconds)):
            self.now += 1
            self.number += 1
            for rank, beat in self.beats.items():
                if rank not in silent:
                    self.pulse.hear(rank, Heartbeat(**{**vars(beat), "number": self.number}), self.now)
            said = self.pulse.stalled_rank(self.waiting_since, self.now)
            if said:
                return said, self.now - 100
        return "", 0


@pytest.mark.fault(16)
def test_a_stopped_process_is_named_within_a_minute_with_its_last_place():
    clock = Clock()
    clock.beats[1] = Heartbeat(waiting=False, allowed=PATIENCE, place="1,200 images", name="process 1 on host (pid 7)")
    assert clock.pass_by(30) == ("", 0)
    clock.waiting_since = clock.now
    said, when = clock.pass_by(100, silent=[1])
    assert said.startswith("Hung: process 1 on host (pid 7) has been silent for 46 s; it was last seen at 1,200 images")
    assert when - 30 < 60


@pytest.mark.fault(16)
def test_a_process_whose_threads_live_while_it_hangs_is_named_after_what_its_step_may_take():
    for allowed in (PATIENCE, 3 * PATIENCE):
        clock = Clock()
        clock.beats[1] = Heartbeat(waiting=False, allowed=allowed, place="64 images", name="process 1")
        said, when = clock.pass_by(1000)
        assert said.startswith("Hung: process 1 does not come to its end; it was last seen at 64 images")
        assert allowed < when <= allowed + 2


def test_it_does_not_matter_whether_a_silent_process_was_waiting_before():
    clock = Clock()
    said, _ = clock.pass_by(100, silent=[1])
    assert "process 1 has been silent" in said


def test_nobody_is_to_blame_while_all_wait_for_the_link():
    assert Clock(size=4).pass_by(3600) == ("", 0)


def test_nobody_is_to_blame_while_this_process_does_not_wait():
    assert Clock(waiting_since=None).pass_by(3600, silent=[1]) == ("", 0)


@pytest.mark.parametrize("allowed", [math.inf, SLOW_FACTOR * PATIENCE])
def test_preparing_data_a_slow_checkpoint_and_a_long_first_step_are_no_hangs(allowed):
    clock = Clock()
    clock.beats[1] = Heartbeat(waiting=False, allowed=allowed, name="process 1")
    assert clock.pass_by(SLOW_FACTOR * PATIENCE) == ("", 0)


def test_of_several_the_silent_one_is_named_by_the_lowest_that_waits():
    first = {}
    for rank in (0, 1, 3):
        clock = Clock(size=4, rank=rank)
        said, first[rank] = clock.pass_by(200, silent=[2])
        assert "process 2" in said
    assert first[0] < first[1] < first[3] <= first[0] + 3 * HEARTBEAT_SECONDS


def test_a_process_that_was_stopped_itself_does_not_blame_the_others():
    """A machine that slept: when it wakes, every beat is old."""
    clock = Clock()
    clock.beats[1] = Heartbeat(waiting=False, allowed=PATIENCE, name="process 1")
    assert clock.pass_by(10) == ("", 0)
    clock.now += 3600
    assert clock.pass_by(40, silent=[1]) == ("", 0)
    said, _ = clock.pass_by(10, silent=[1])
    assert "silent for" in said


def test_a_silent_store_is_the_fault_of_the_process_that_keeps_it():
    """That is the first one: whoever asks it hears nothing of anybody."""
    clock = Clock(size=3, rank=2)
    assert clock.pass_by(10) == ("", 0)
    said, _ = clock.pass_by(100, silent=[0, 1])
    assert "process 0" in said


# ---- its threads -----------------------------------------------------------------------------------------


class Store:
    """A dictionary; `stuck`: it does not answer, as one whose process is stopped."""

    def __init__(self):
        self.values, self.stuck = {}, threading.Event()

    def clone(self):
        return self

    def set(self, key, value):
        while self.stuck.is_set():
            time.sleep(0.01)
        self.values[key] = value.encode()

    def get(self, key):
        return self.values[key]

    def check(self, keys):
        return all(key in self.values for key in keys)


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr("pggan.distributed.watchdog.HEARTBEAT_SECONDS", 0.01)


def watchdog_of(store, said, ended, rank=0):
    group = ProcessGroup(RankInfo(rank, 2, rank, 2), torch.device("cpu"), None, store)
    return Watchdog(group, 0.2, said.append, ended.append)


@pytest.mark.parametrize("stuck", [False, True])
def test_it_tells_and_ends_the_process(quick, stuck):
    """With an exit code that says that another one is at fault; even when the store itself has stopped."""
    store, said, ended = Store(), [], []
    store.values["beat/1"] = json.dumps(vars(Heartbeat(1, False, 0.2, "8 images", "process 1 (pid 5)"))).encode()
    watchdog = watchdog_of(store, said, ended)
    watchdog.process_group.waiting_since = time.monotonic()
    with watchdog:
        for _ in range(20):
            time.sleep(0.01)
        if stuck:
            store.stuck.set()
        for _ in range(1000):
            if ended:
                break
            time.sleep(0.01)
    store.stuck.clear()
    assert ended == [EXIT_LEFT]
    assert "Hung: process 1 (pid 5) has been silent" in said[0]


def test_it_says_what_its_process_is_doing(quick):
    store = Store()
    watchdog = watchdog_of(store, [], [], rank=1)

    def beat():
        before = json.loads(store.values["beat/1"])["number"] if "beat/1" in store.values else 0
        for _ in range(1000):
            if "beat/1" in store.values and json.loads(store.values["beat/1"])["number"] > before + 1:
                break
            time.sleep(0.01)
        return Heartbeat(**json.loads(store.values["beat/1"]))

    with watchdog:
        assert (beat().allowed, beat().place, beat().waiting) == (math.inf, "the start", False)
        watchdog.begin()
        assert beat().allowed == pytest.approx(SLOW_FACTOR * 0.2)
        watchdog.stepped("8 images")
        watchdog.stepped("16 images")
        assert (beat().place, beat().allowed) == ("16 images", 0.2)
        with watchdog.slow():
            assert beat().allowed == pytest.approx(SLOW_FACTOR * 0.2)
        watchdog.process_group.waiting_since = time.monotonic()
        assert beat().waiting
        assert "process 1 on" in beat().name
    time.sleep(0.1)
    last = store.values["beat/1"]
    time.sleep(0.1)
    assert store.values["beat/1"] == last


def test_alone_there_is_nothing_to_watch():
    before = threading.active_count()
    with Watchdog(ProcessGroup.single_process(torch.device("cpu")), 45, print):
        assert threading.active_count() == before
