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


def added_up(kind, group):
    """Six steps of both players, the last three with more layers: what this rank was given, and files left open."""
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
    return found, len(os.listdir("/proc/self/fd")) - open_files


HIDDEN = {None: True, 0: False, 1: False}  # the rank that can't see the memory, and whether all then share it


def looked(hidden, group):
    """Whether this rank is told that all see the same memory, and whether those of two machines do."""
    elsewhere = ProcessGroup(RankInfo(group.rank, 2, 0, 1), CPU, None, None)  # one rank on each machine
    with pytest.MonkeyPatch.context() as patch:
        if group.rank == hidden:
            patch.setattr(shared_memory, "text_at", lambda path: "")
        return shares_memory(group), shares_memory(elsewhere)


def all_found():
    """On one rank: sums in shared memory; of two also those over a socket, and where memory is shared."""
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    of_memory, of_sockets, seen, without_files = added_up(SharedMemoryReducer, group), [], {}, None
    if group.world_size == 2:
        of_sockets, _ = added_up(AllReduceFp32, group)
        seen = {hidden: looked(hidden, group) for hidden in HIDDEN}
        with pytest.MonkeyPatch.context() as patch:
            patch.delattr(os, "memfd_create")
            without_files = shares_memory(group)
    group.shutdown()
    return of_memory, of_sockets, seen, without_files


@pytest.fixture(scope="module")
def of_ranks():
    """What each rank found, of two and of three."""
    return {count: values_of(in_processes(count, all_found)) for count in (2, 3)}


@pytest.mark.parametrize("count", [2, 3])
def test_every_rank_gets_the_sum_of_all_at_every_step_and_after_growth(of_ranks, count):
    state = new_state(ARCHITECTURE, ADAM, 0, CPU)
    for (found, left), *_ in of_ranks[count]:
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


def test_two_machines_get_the_same_sums_over_a_socket(of_ranks):
    for (of_memory, _), of_sockets, *_ in of_ranks[2]:
        for (loss, summed), (their_loss, theirs) in zip(of_memory, of_sockets, strict=True):
            assert loss == their_loss
            assert all((mine == yours).all() for mine, yours in zip(summed, theirs, strict=True))


# ---- where it is possible --------------------------------------------------------------------------------


def test_memory_is_shared_where_all_ranks_can_see_it_and_nowhere_else(of_ranks):
    for *_, seen, _ in of_ranks[2]:
        assert seen == {hidden: (expected, False) for hidden, expected in HIDDEN.items()}


def test_systems_without_anonymous_files_use_sockets(of_ranks):
    assert [without_files for *_, without_files in of_ranks[2]] == [False, False]


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
