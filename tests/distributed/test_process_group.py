"""What ranks send each other besides gradients, and how they fail together."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from pggan.core.errors import EXIT_PEER_LOST, UserError
from pggan.distributed import process_group
from pggan.distributed.process_group import (
    PeerLost,
    ProcessGroup,
    RankInfo,
    RemoteUserError,
    agreed_prefix,
    rank_from_environment,
    run_distributed,
)
from tests.processes import in_processes, values_of

pytestmark = pytest.mark.slow  # starts processes

CPU = torch.device("cpu")


def refused(call, *arguments):
    """The kind and the text of the error that `call` raises, of this rank or of another."""
    try:
        call(*arguments)
    except (UserError, RemoteUserError) as error:
        return f"{type(error).__name__}: {error}"


def objects(group):
    """Collectives of objects and errors; what each rank saw."""

    def fail(*ranks):
        with group.collective_errors():
            if group.rank in ranks:
                raise UserError("No such thing.", "Use another.")

    group.require_same({"seed": 0})
    return {
        "gathered": group.all_gather_object("ä" * (3 - group.rank)),
        "broadcast": group.broadcast_object({"a": [1, None]} if group.is_main else None),
        "one failed": refused(fail, 2),
        "all failed": refused(fail, 0, 1, 2),
        "different": refused(group.require_same, {"seed": 0, "torch": "2.13" if group.rank < 2 else "2.12"}),
        "more": refused(group.require_same, {"batch.4": 8} | ({"batch.8": 16} if group.rank == 2 else {})),
    }


def flags(group):
    """The third of three ranks raises a flag in the second call."""
    return [group.all_reduce_flags(4 if (group.rank, number) == (2, 1) else group.rank == 1) for number in range(4)]


def weights(group):
    """Equal weights; then some with a flipped bit on rank 1; then the same numbers in another order there."""
    generator = torch.Generator().manual_seed(0)
    equal = {"G": [torch.randn(3, generator=generator)], "D": [torch.randn(2, 2, generator=generator), torch.ones(2)]}
    group.require_equal_weights(equal)
    flipped = {name: [tensor.clone() for tensor in tensors] for name, tensors in equal.items()}
    swapped = {"G": [torch.ones(2), torch.zeros(2)]}
    if group.rank == 1:
        flipped["D"][0].view(torch.int32)[1, 1] ^= 1
        swapped["G"].reverse()
    return [refused(group.require_equal_weights, named) for named in (flipped, swapped)]


def everything():
    group = ProcessGroup.connect(rank_from_environment(), CPU)
    found = [function(group) for function in (objects, flags, weights)]
    group.shutdown()
    return found


@pytest.fixture(scope="module")
def seen():
    """What three ranks saw: by function, then by rank."""
    return list(zip(*values_of(in_processes(3, everything)), strict=True))


def test_objects_are_gathered_in_order_of_rank_and_broadcast_from_rank_0(seen):
    for found in seen[0]:
        assert found["gathered"] == ["äää", "ää", "ä"]
        assert found["broadcast"] == {"a": [1, None]}


def test_an_error_of_one_rank_is_raised_there_and_ends_all(seen):
    for case, ranks in (("one failed", [2]), ("all failed", [0])):
        kinds = [found[case].partition(":")[0] for found in seen[0]]
        assert kinds == ["UserError" if rank in ranks else "RemoteUserError" for rank in range(3)]
        assert all("No such thing." in found[case] for found in seen[0])  # the other ranks quote the text


def test_what_differs_between_ranks_is_named(seen):
    assert "Rank 2 has another torch than rank 0: 2.12 instead of 2.13" in seen[0][0]["different"]
    assert sum(found["different"].startswith("UserError") for found in seen[0]) == 1
    assert "Rank 2 has another batch.8 than rank 0: 16 instead of nothing" in seen[0][0]["more"]


def test_a_flag_of_one_rank_reaches_all_in_the_same_call(seen):
    assert seen[1] == ([1, 5, 1, 1],) * 3


def test_one_flipped_bit_in_the_weights_of_a_rank_is_an_error_that_names_it(seen):
    """And so is the same sum of weights in another order."""
    for name, (error, *others) in zip(("D", "G"), zip(*seen[2], strict=True), strict=True):
        assert f"UserError: Rank 1 has another checksum of the weights of {name} than rank 0" in error
        assert "resumes from the last checkpoint" in error
        assert all(other.startswith("RemoteUserError") for other in others)


# ---- losing one ------------------------------------------------------------------------------------------


def lose_one():
    group = ProcessGroup.connect(rank_from_environment(), CPU)
    group.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.all_gather_object("there?")
    except PeerLost as error:
        return str(error)
    return "no error"


def test_a_rank_that_is_gone_is_noticed_in_the_next_collective():
    here, gone = in_processes(2, lose_one)
    assert gone.code == -signal.SIGKILL
    assert here.value.startswith("rank 0 on ")
    assert "lost its connection to the other ranks" in here.value


def run_out_of_memory_on_rank_1():
    def run(group):
        if group.rank == 1:
            raise PeerLost("Out of memory at 8x8.")
        group.barrier()
        return 0

    return run_distributed(rank_from_environment(), "cpu", run)


def test_a_rank_whose_memory_does_not_suffice_in_the_middle_of_a_step_lets_all_restart():
    """With EXIT_USER_ERROR, agents would not restart them."""
    assert values_of(in_processes(2, run_out_of_memory_on_rank_1)) == [EXIT_PEER_LOST] * 2


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), torch.AcceleratorError("CUDA error", 1)])
def test_an_error_of_ones_own_device_is_no_lost_rank(error):
    with pytest.raises(type(error)), ProcessGroup(RankInfo(0, 2, 0, 2), CPU, None).collective():
        raise error


def test_an_error_when_a_collective_is_started_is_a_lost_rank():
    """NCCL reports most errors there."""

    def broken(*_, **__):
        raise RuntimeError("NCCL error: remote process exited")

    with pytest.raises(PeerLost, match="remote process exited"):
        ProcessGroup(RankInfo(0, 2, 0, 2), CPU, None).start(broken, torch.zeros(1))


@pytest.mark.parametrize("stalls", [True, False])
def test_a_rank_whose_gpu_makes_no_progress_ends(monkeypatch, capfd, stalls):
    group, asked = ProcessGroup(RankInfo(0, 2, 0, 2), CPU, None), []

    class Event:
        def query(self):
            asked.append(self)
            if len(asked) >= 50:
                raise StopIteration
            return not stalls

    group._step_events.append(Event())
    monkeypatch.setattr(process_group, "STALL_SECONDS", 0.05)
    monkeypatch.setattr(process_group.time, "sleep", lambda seconds, sleep=time.sleep: sleep(seconds / 100))
    monkeypatch.setattr(process_group.os, "_exit", lambda code: asked.extend([code] * 49) or None)
    with pytest.raises(StopIteration):
        group.end_if_stalled()
    assert (EXIT_PEER_LOST in asked) == stalls
    assert ("has not finished a step" in capfd.readouterr().err) == stalls


def test_ranks_that_start_together_agree_where_others_have_ended():
    """In the store of a plain torchrun are the keys of a start that was complete, and of one that was not."""
    store = torch.distributed.HashStore()

    def start(ranks):
        with ThreadPoolExecutor(3) as pool:
            infos = [RankInfo(rank, 3, rank, 3) for rank in ranks]
            return list(pool.map(lambda info: agreed_prefix(store, info, 2 if len(ranks) < 3 else 60), infos))

    first = start([0, 1, 2])
    with pytest.raises(RuntimeError):
        start([0, 2])
    second = start([2, 1, 0])
    assert (len({*first}), len({*second}), len({*first, *second})) == (1, 1, 2)
