"""The stalled rank that keeps the others waiting: found by heartbeats alone, with made-up clocks and stores."""

import json
import math
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from pggan.core.errors import EXIT_PEER_LOST
from pggan.distributed.process_group import MAX_STEPS_IN_FLIGHT, ProcessGroup, RankInfo
from pggan.distributed.watchdog import (
    HEARTBEAT_SECONDS,
    SLOW_FACTOR,
    STEP_FACTOR,
    Heartbeat,
    HeartbeatMonitor,
    Watchdog,
)

TIMEOUT = 45.0


class Clock:
    """Ranks that send a heartbeat each second, seen by one of them that waits."""

    def __init__(self, size=2, rank=0, waiting_since=100.0, **others):
        self.monitor = HeartbeatMonitor(rank, [f"rank {other}" for other in range(size)], TIMEOUT)
        self.now, self.number = 100.0, 0
        self.waiting_since, self.others = waiting_since, others
        self.monitor.stalled_rank(None, self.now)
        self.beats = {other: Heartbeat(waiting=True, name=f"rank {other}") for other in range(size) if other != rank}

    def pass_by(self, seconds, silent=()):
        """The first message within so many seconds, and when it came."""
        for _ in range(int(seconds)):
            self.now += 1
            self.number += 1
            for rank, beat in self.beats.items():
                if rank not in silent:
                    self.monitor.hear(rank, Heartbeat(**{**vars(beat), "number": self.number}), self.now)
            said = self.monitor.stalled_rank(self.waiting_since, self.now, **self.others)
            if said:
                return said, self.now - 100
        return "", 0


@pytest.mark.fault(16)
def test_a_stopped_rank_is_named_within_a_minute_with_its_last_position():
    clock = Clock()
    clock.beats[1] = Heartbeat(waiting=False, allowed=TIMEOUT, position="1,200 images", name="rank 1 on host (pid 7)")
    assert clock.pass_by(30) == ("", 0)
    clock.waiting_since = clock.now
    said, when = clock.pass_by(100, silent=[1])
    assert said.startswith("Stalled: rank 1 on host (pid 7) has been silent for 46 s; it was last seen at 1,200 images")
    assert when - 30 < 60


@pytest.mark.fault(16)
def test_a_rank_whose_threads_live_while_it_hangs_is_named_after_the_time_that_its_step_may_take():
    for allowed in (TIMEOUT, 3 * TIMEOUT):
        clock = Clock()
        clock.beats[1] = Heartbeat(waiting=False, allowed=allowed, position="64 images", name="rank 1")
        said, when = clock.pass_by(1000)
        assert said.startswith("Stalled: rank 1 makes no progress; it was last seen at 64 images")
        assert allowed < when <= allowed + 2


def test_it_does_not_matter_whether_a_silent_rank_was_waiting_before():
    clock = Clock()
    said, _ = clock.pass_by(100, silent=[1])
    assert "rank 1 has been silent" in said


def test_no_rank_is_to_blame_while_all_wait_for_the_link():
    assert Clock(size=4).pass_by(3600) == ("", 0)


@pytest.mark.fault(16)
def test_ranks_that_wait_for_their_devices_name_the_stopped_one_and_end_after_a_slow_step_if_there_is_none():
    """A collective on GPUs whose link has failed never ends, and no rank is silent."""
    clock = Clock(on_device=True)
    said, when = clock.pass_by(100, silent=[1])
    assert "rank 1 has been silent" in said
    assert when < 60
    said, when = Clock(size=4, rank=2, on_device=True).pass_by(3600)
    assert said.startswith("Stalled: no rank is missing, but the device of rank 2 has not moved for ")
    assert "compute.cuda_graphs=off" in said
    assert SLOW_FACTOR * TIMEOUT < when <= SLOW_FACTOR * TIMEOUT + 4


def test_a_rank_whose_main_thread_is_stuck_names_a_silent_one_but_none_that_may_be_stuck_as_well():
    """In a step, at the full queue of its device, where it can't say that it waits."""
    clock = Clock(waiting_since=None, stuck_since=100.0)
    clock.beats[1] = Heartbeat(waiting=False, allowed=TIMEOUT, name="rank 1")
    assert clock.pass_by(3600) == ("", 0)
    said, _ = clock.pass_by(100, silent=[1])
    assert "rank 1 has been silent" in said


def test_no_rank_is_to_blame_while_this_one_does_not_wait():
    assert Clock(waiting_since=None).pass_by(3600, silent=[1]) == ("", 0)


@pytest.mark.parametrize("allowed", [math.inf, SLOW_FACTOR * TIMEOUT])
def test_preparing_data_a_slow_checkpoint_and_a_long_first_step_are_no_hangs(allowed):
    clock = Clock()
    clock.beats[1] = Heartbeat(waiting=False, allowed=allowed, name="rank 1")
    assert clock.pass_by(SLOW_FACTOR * TIMEOUT) == ("", 0)


def test_the_silent_rank_is_named_first_by_the_lowest_that_waits():
    first = {}
    for rank in (0, 1, 3):
        clock = Clock(size=4, rank=rank)
        said, first[rank] = clock.pass_by(200, silent=[2])
        assert "rank 2" in said
    assert first[0] < first[1] < first[3] <= first[0] + 3 * HEARTBEAT_SECONDS


def test_a_rank_that_was_stopped_itself_does_not_blame_the_others():
    """A machine that slept: when it wakes, every heartbeat is old."""
    clock = Clock()
    clock.beats[1] = Heartbeat(waiting=False, allowed=TIMEOUT, name="rank 1")
    assert clock.pass_by(10) == ("", 0)
    clock.now += 3600
    assert clock.pass_by(40, silent=[1]) == ("", 0)
    said, _ = clock.pass_by(10, silent=[1])
    assert "silent for" in said


def test_a_silent_store_is_the_fault_of_the_rank_that_keeps_it():
    """That is rank 0: whoever asks its store hears of no rank at all."""
    clock = Clock(size=3, rank=2)
    assert clock.pass_by(10) == ("", 0)
    said, _ = clock.pass_by(100, silent=[0, 1])
    assert "rank 0" in said


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


def until(condition):
    """Wait for as long as a busy machine may take."""
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    assert condition()


def watchdog_of(store, said, ended, rank=0, timeout=0.2):
    group = ProcessGroup(RankInfo(rank, 2, rank, 2), torch.device("cpu"), None, store)
    group.names[1] = "rank 1 (pid 5)"  # known before its first heartbeat comes
    return Watchdog(group, timeout, said.append, ended.append)


@pytest.mark.parametrize("stuck", [False, True])
def test_it_reports_and_ends_the_process(quick, stuck):
    """With an exit code that says that another rank is at fault; even when the store itself has stopped."""
    store, said, ended = Store(), [], []
    store.values["heartbeat/1"] = json.dumps(vars(Heartbeat(1, False, 60.0, "8 images", "rank 1 (pid 5)"))).encode()
    watchdog = watchdog_of(store, said, ended)
    watchdog.group.waiting_since = time.monotonic()
    with watchdog:
        until(lambda: "heartbeat/0" in store.values)
        if stuck:
            store.stuck.set()
        until(lambda: ended)
    store.stuck.clear()
    assert ended == [EXIT_PEER_LOST]
    assert "Stalled: rank 1 (pid 5) has been silent" in said[0]


class Device:
    """The queue of a GPU: a collective in it never ends, until `moves` is set."""

    def __init__(self, monkeypatch):
        self.moves, self.events = threading.Event(), 0
        monkeypatch.setattr(torch.cuda, "current_stream", lambda device: self)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda device: self.synchronize())

    def record_event(self):
        self.events += 1
        return self

    def synchronize(self):
        assert self.moves.wait(60)


@pytest.mark.fault(16)
@pytest.mark.parametrize("where", ["a tick", "the weights", "a full queue"])
def test_a_collective_that_never_ends_on_the_device_is_waited_for_where_the_watchdog_looks(quick, monkeypatch, where):
    """The other rank has stopped in a step; this one has queued its own, and needs values or more room."""
    store, said, ended, device = Store(), [], [], Device(monkeypatch)
    store.values["heartbeat/1"] = json.dumps(vars(Heartbeat(1, False, 60.0, "8 images", "rank 1 (pid 5)"))).encode()
    watchdog = watchdog_of(store, said, ended)
    group = watchdog.group
    group.device, group._control = torch.device("cuda"), SimpleNamespace()
    work = SimpleNamespace(wait=lambda: None)
    monkeypatch.setattr("torch.distributed.all_reduce", lambda *_, **__: work)
    monkeypatch.setattr(ProcessGroup, "all_gather_object", lambda group, value: [value, value])

    def train():
        if where == "a tick":
            group.all_reduce(torch.ones(1))
        elif where == "the weights":
            group.require_equal_weights({"G": [torch.ones(1)]})
        for _ in range(2 * MAX_STEPS_IN_FLIGHT):
            group.limit_steps_in_flight()
            group.all_reduce_flags(0)

    training = threading.Thread(target=train, daemon=True)
    with watchdog:
        training.start()
        until(lambda: ended)
    assert (group.waits_for_device, training.is_alive()) == (True, True)
    assert ended == [EXIT_PEER_LOST]
    assert "Stalled: rank 1 (pid 5) has been silent" in said[0]
    assert device.events == (MAX_STEPS_IN_FLIGHT + 1 if where == "a full queue" else 0)
    device.moves.set()
    training.join(60)
    assert (group.waits_for_device, group.waiting_since) == (False, None)


def next_beat(store):
    """A heartbeat that began after this call."""

    def number():
        return json.loads(store.values["heartbeat/1"])["number"] if "heartbeat/1" in store.values else 0

    before = number()
    until(lambda: number() > before + 1)
    return Heartbeat(**json.loads(store.values["heartbeat/1"]))


def test_heartbeats_say_what_the_rank_is_doing(quick):
    store = Store()
    watchdog = watchdog_of(store, [], [], rank=1)
    with watchdog:
        beat = next_beat(store)
        assert (beat.allowed, beat.position, beat.waiting) == (math.inf, "the start", False)
        watchdog.stepped("8 images")
        watchdog.stepped("16 images")
        assert next_beat(store).position == "16 images"
        watchdog.group.waiting_since = time.monotonic()
        assert next_beat(store).waiting
        assert "rank 1 on" in next_beat(store).name
    until(lambda: not any(thread.is_alive() for thread in watchdog._threads))


@pytest.fixture
def step(quick, monkeypatch):
    """`step(seconds)`: the rank takes a step of that many seconds; returns how many the next one may take."""
    clock, store = [100.0], Store()
    monkeypatch.setattr("pggan.distributed.watchdog.time", SimpleNamespace(monotonic=lambda: clock[0]))
    watchdog = watchdog_of(store, [], [], rank=1, timeout=TIMEOUT)

    def take(seconds=None):
        if seconds is not None:
            clock[0] += seconds
            watchdog.stepped(f"{clock[0]} images")
        return next_beat(store).allowed

    take.watchdog, take.clock = watchdog, clock
    with watchdog:
        watchdog.begin()
        yield take


def test_a_step_may_take_a_few_times_what_the_last_one_took_and_no_less_than_the_timeout(step):
    assert step() == SLOW_FACTOR * TIMEOUT  # the first step of this command
    assert step(30) == STEP_FACTOR * 30
    assert step(12) == STEP_FACTOR * 12
    assert step(2) == TIMEOUT
    assert STEP_FACTOR * 12 > TIMEOUT > STEP_FACTOR * 2


def test_the_first_step_of_a_phase_has_more_time_and_the_one_after_it_is_judged_as_before(step):
    step(2)
    step.watchdog.expect_slow_step()
    assert step() == SLOW_FACTOR * TIMEOUT
    assert step(600) == TIMEOUT  # compiling took long; that says nothing about the next step
    assert step(30) == STEP_FACTOR * 30


def test_what_is_known_to_be_slow_has_more_time_and_is_not_part_of_a_step(step):
    step(2)
    with step.watchdog.slow():
        assert step() == SLOW_FACTOR * TIMEOUT
        step.clock[0] += 600
    assert step() == TIMEOUT
    assert step(2) == TIMEOUT


def test_in_a_single_process_there_is_nothing_to_watch():
    before = threading.active_count()
    with Watchdog(ProcessGroup.single_process(torch.device("cpu")), 45, print):
        assert threading.active_count() == before
