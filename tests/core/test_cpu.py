"""The cores and the memory that control groups leave."""

import pytest

from pggan.core import cpu


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
