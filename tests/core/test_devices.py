"""Which devices a choice means, with and without CUDA devices in this machine; cores."""

import pytest
import torch

from pggan.core import process
from pggan.core.devices import choose_device, count_devices, device_of_rank, set_threads
from pggan.core.errors import UserError


@pytest.fixture
def machine(monkeypatch):
    """Let torch find so many CUDA devices, and Apple's MPS or not."""

    def make(cuda=0, mps=False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.cuda, "set_device", lambda number: None)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    make()
    return make


def test_what_is_no_device_or_not_here_is_refused_with_its_key(machine):
    for name in ("cuda", "mps", "tpu", ""):
        with pytest.raises(UserError, match=f"device={name}.*\n.*auto, or one of cpu"):
            choose_device(name, "device")
    machine(cuda=2)
    hints = {"3": "this machine has 2 CUDA devices.*\n.*cpu:3", "0": "Use auto", "cpu:x": "Use auto"}
    for choice, hint in hints.items():
        with pytest.raises(UserError, match=f"devices={choice}(?s:.)*{hint}"):
            count_devices(choice)


def test_ranks_get_a_device_each_and_share_the_cpu(machine):
    assert device_of_rank("cpu", 5) == torch.device("cpu")
    assert device_of_rank("auto", 1) == torch.device("cpu")
    assert device_of_rank("cpu:3", 1) == torch.device("cpu")
    machine(cuda=3)
    assert device_of_rank("auto", 2) == torch.device("cuda", 2)
    assert device_of_rank("cuda", 1) == torch.device("cuda", 1)
    assert device_of_rank("3", 0) == torch.device("cuda", 0)
    with pytest.raises(UserError, match="one rank per CUDA device"):
        device_of_rank("auto", 3)
    machine(cuda=1)  # each rank sees its own alone, as with srun --gpus-per-task=1
    assert device_of_rank("auto", 2) == torch.device("cuda", 0)


def test_threads_that_an_earlier_job_has_set_are_not_kept():
    set_threads(None)
    default = torch.get_num_threads()
    set_threads(default % 2 + 1)
    set_threads(None)
    assert torch.get_num_threads() == default


def test_cores_are_those_that_the_narrowest_control_group_gives_time_of(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "SYSTEM", tmp_path)
    monkeypatch.setattr(process.os, "sched_getaffinity", lambda _: range(32), raising=False)
    for name, text, cores in (
        ("proc/self/cgroup", "5:memory:/elsewhere\n0::/jobs/7\n", 32),
        ("sys/fs/cgroup/jobs/7/cpu.max", "max 100000\n", 32),
        ("sys/fs/cgroup/jobs/cpu.max", "250000 100000\n", 3),
        ("sys/fs/cgroup/jobs/7/cpu.max", "10000 100000\n", 1),
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
        assert process.available_cores() == cores
