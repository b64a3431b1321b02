"""Gradients added up in memory that all ranks of a machine see."""

import errno
import os

import pytest
import torch

from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup, RankInfo, rank_from_environment
from pggan.optim import shared_memory
from pggan.optim.reducer import AllReduceFp32
from pggan.optim.shared_memory import SharedMemoryReducer, reserve, shared_buffer, shares_memory
from pggan.optim.state import new_state
from tests.definitions import ADAM, variant
from tests.processes import in_processes, values_of

pytestmark = pytest.mark.slow  # starts processes

CPU = torch.device("cpu")
ARCHITECTURE = variant(resolution=16, latent_size=8, fmap_base=128, fmap_max=16, stddev_group=2)


def gradients_of(trainable, rank, number, layers):
    """Of one rank in one step, for the first `layers` weights."""
    generator = torch.Generator().manual_seed(1000 * number + rank)
    return [torch.randn(weight.shape, generator=generator) for weight in trainable.network.weights[:layers]]


def added_up(kind):
    """Six steps of both players, the last three with more layers: what this rank was given, by kind of reducer."""
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    reducer, state, found = kind(group), new_state(ARCHITECTURE, ADAM, 0, CPU), []
    open_files = len(os.listdir("/proc/self/fd"))
    for number in range(6):
        for trainable in (state.d, state.g):
            trainable.zero_grad()
            layers = 6 if number < 3 else len(trainable.network.weights)
            for weight, gradient in zip(
                trainable.network.weights, gradients_of(trainable, group.rank, number, layers), strict=False
            ):
                weight.grad = torch.empty_like(weight).copy_(gradient)
            reducer.accumulate(trainable, torch.tensor(float(group.rank + number)), 6)
            loss = reducer.start_all_reduce(trainable, 6)()
            summed = [weight.grad.numpy().copy() for weight in trainable.network.weights[:layers]]
            for weight in trainable.network.weights[:layers]:
                weight.grad.fill_(float("nan"))  # as an optimizer may: no other rank must see it
            found.append((float(loss), summed))
    left = len(os.listdir("/proc/self/fd")) - open_files
    group.shutdown()
    return found, left


@pytest.mark.parametrize("count", [2, 3])
def test_every_rank_gets_the_sum_of_all_at_every_step_and_after_growth(count):
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    for found, left in values_of(in_processes(count, added_up, SharedMemoryReducer)):
        assert left == 0  # no open file
        for number in range(6):
            for place, trainable in enumerate((state.d, state.g)):
                layers = 6 if number < 3 else len(trainable.network.weights)
                loss, summed = found[2 * number + place]
                assert loss == sum(rank + number for rank in range(count))
                everyone = [gradients_of(trainable, rank, number, layers) for rank in range(count)]
                assert len(summed) == layers
                for mine, theirs in zip(summed, zip(*everyone, strict=True), strict=True):
                    assert torch.from_numpy(mine).equal(sum(theirs[1:], theirs[0]))


def test_two_machines_get_the_same_sums_over_a_socket():
    of_memory, of_sockets = (
        values_of(in_processes(2, added_up, kind)) for kind in (SharedMemoryReducer, AllReduceFp32)
    )
    for (one, _), (other, _) in zip(of_memory, of_sockets, strict=True):
        for (loss, summed), (their_loss, theirs) in zip(one, other, strict=True):
            assert loss == their_loss
            assert all((mine == yours).all() for mine, yours in zip(summed, theirs, strict=True))


# ---- where it is possible --------------------------------------------------------------------------------


def looked(hidden):
    """Whether this rank is told that all see the same memory; `hidden` is the rank that can't."""
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    if group.rank == hidden:
        shared_memory.text_at = lambda path: ""
    elsewhere = ProcessGroup(RankInfo(group.rank, 2, 0, 1), CPU, None, None)  # one rank on each machine
    answer = shares_memory(group), shares_memory(elsewhere)
    group.shutdown()
    return answer


@pytest.mark.parametrize(("hidden", "expected"), [(None, True), (0, False), (1, False)])
def test_memory_is_shared_where_all_ranks_can_see_it_and_nowhere_else(hidden, expected):
    assert values_of(in_processes(2, looked, hidden)) == [(expected, False)] * 2


def without_files():
    """What a rank of a system without anonymous files is told."""
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    del os.memfd_create
    answer = shares_memory(group)
    group.shutdown()
    return answer


def test_systems_without_anonymous_files_use_sockets():
    assert values_of(in_processes(2, without_files)) == [False, False]


def test_too_little_memory_is_told_before_anything_is_written(monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(os, "posix_fallocate", fail)
    with pytest.raises(UserError, match="No 300 MiB of memory for the gradients") as caught:
        reserve(0, 300 * 2**20)
    assert "gradients=bf16" in caught.value.remedy


def test_rows_do_not_share_a_line_of_the_cache():
    rows = shared_buffer(ProcessGroup.single_process(CPU), 17)
    assert rows.shape == (1, 32)
    assert rows.dtype is torch.float32
    assert not rows.any()
