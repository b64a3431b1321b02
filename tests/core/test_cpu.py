"""How Linux runs the threads of a process: in short time slices, for the same share of time."""

import os
import subprocess
import sys

import pytest

from pggan.core import cpu
from pggan.core.cpu import SHORT_TIME_SLICE, SchedAttr, scheduling

needs_slices = pytest.mark.skipif(scheduling() is None, reason="this system has no time slices to choose (Linux 6.12)")


def shown(code, *, prefix=()):
    """What Python prints in a process of its own that has the system's time slice, whatever this one has."""
    command = [*prefix, sys.executable, "-c", f"import os; from pggan.core import cpu; cpu.set_time_slice(0); {code}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


@needs_slices
def test_threads_get_short_time_slices_at_the_same_priority():
    code = """
from threading import Thread
print(cpu.scheduling().runtime > cpu.SHORT_TIME_SLICE)
cpu.set_time_slice(cpu.SHORT_TIME_SLICE)
print(cpu.scheduling().runtime, cpu.scheduling().nice, os.sched_getscheduler(0))
thread = Thread(target=lambda: print(cpu.scheduling().runtime))
thread.start(), thread.join()
"""
    normal = ["True", str(SHORT_TIME_SLICE), str(min(os.nice(0) + 1, 19)), str(os.SCHED_OTHER), str(SHORT_TIME_SLICE)]
    assert shown(code, prefix=["nice", "-n", "1"]) == normal


@needs_slices
def test_another_scheduling_policy_of_the_user_stays():
    code = """
os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
cpu.set_time_slice(cpu.SHORT_TIME_SLICE)
print(os.sched_getscheduler(0) == os.SCHED_BATCH, cpu.scheduling())
"""
    assert shown(code) == ["True", "None"]


@needs_slices
def test_a_process_that_trains_on_a_cpu_has_short_time_slices():
    code = """
import torch
from pggan.config import Precision
from pggan.training.precision import configure_process
configure_process(torch.device("cpu"), Precision.fp32)
print(cpu.scheduling().runtime)
"""
    assert shown(code) == [str(SHORT_TIME_SLICE)]


@pytest.mark.parametrize(("platform", "machine"), [("darwin", "arm64"), ("linux", "sparc64")])
def test_systems_without_such_a_call_are_left_as_they_are(platform, machine, monkeypatch):
    monkeypatch.setattr(cpu.sys, "platform", platform)
    monkeypatch.setattr(cpu.platform, "machine", lambda: machine)
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda name: pytest.fail("nothing is to be called"))
    cpu.set_time_slice(cpu.SHORT_TIME_SLICE)


@pytest.mark.parametrize("attributes", [SchedAttr(policy=0, runtime=0), SchedAttr(policy=3, runtime=2_000_000)])
def test_older_systems_and_other_policies_are_asked_for_nothing(attributes, monkeypatch):
    calls = []

    class Library:
        def syscall(self, number, thread, attributes_of_call, *rest):
            calls.append(number)
            attributes_of_call._obj.__init__(*(getattr(attributes, name) for name, _ in SchedAttr._fields_))
            return 0

    monkeypatch.setattr(cpu.sys, "platform", "linux")
    monkeypatch.setattr(cpu.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cpu.ctypes, "CDLL", lambda name: Library())
    cpu.set_time_slice(cpu.SHORT_TIME_SLICE)
    assert calls == [315]


@pytest.fixture
def control_group(tmp_path, monkeypatch):
    """A function that writes files of control groups, of which that of this process is called jobs/7."""
    (tmp_path / "own").write_text("5:memory:/elsewhere\n0::/jobs/7\n")
    monkeypatch.setattr(cpu, "OWN_CONTROL_GROUP", tmp_path / "own")
    monkeypatch.setattr(cpu, "CONTROL_GROUPS", tmp_path / "groups")

    def write(name, **files):
        folder = tmp_path / "groups" / name
        folder.mkdir(parents=True, exist_ok=True)
        for file, content in files.items():
            (folder / file.replace("_", ".", 1)).write_text(f"{content}\n")

    return write


def test_cores_are_those_that_the_narrowest_control_group_gives_time_of(control_group, monkeypatch):
    monkeypatch.setattr(cpu.os, "sched_getaffinity", lambda _: range(32), raising=False)
    assert cpu.available_cores() == 32
    control_group("jobs/7", cpu_max="max 100000")
    assert cpu.available_cores() == 32
    control_group("jobs", cpu_max="250000 100000")
    assert cpu.available_cores() == 3
    control_group("jobs/7", cpu_max="10000 100000")
    assert cpu.available_cores() == 1


def test_memory_is_what_the_narrowest_control_group_leaves(control_group, monkeypatch, tmp_path):
    of_machine = cpu.available_memory()
    control_group("jobs/7", memory_max="max", memory_current=1000)
    assert cpu.available_memory() == pytest.approx(of_machine, rel=0.5)
    control_group("jobs", memory_max=5000, memory_current=3000)
    assert cpu.available_memory() == 2000
    control_group("jobs/7", memory_max=4000, memory_current=3500, memory_stat="anon 3200\ninactive_file 300")
    assert cpu.available_memory() == 800
    control_group("jobs/7", memory_max=4000, memory_current=4100, memory_stat="anon 4100")
    assert cpu.available_memory() == 0
