"""What ranks send each other besides gradients, and how they fail together."""

import os
import signal
from functools import partial
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

import pggan.distributed.process_group
from pggan.core.errors import EXIT_FAILED, EXIT_PEER_LOST, EXIT_USER_ERROR, StepOutOfMemory, UserError
from pggan.distributed.process_group import (
    PeerLost,
    ProcessGroup,
    RankInfo,
    RemoteUserError,
    rank_from_environment,
    run_distributed,
)
from pggan.run.report import MetricAccumulator
from tests.processes import in_processes, values_of

pytestmark = pytest.mark.slow  # starts processes

CPU = torch.device("cpu")


def objects(group):
    """Collectives of objects and errors; what each rank saw."""
    found = {
        "gathered": group.all_gather_object("ä" * (3 - group.rank)),
        "broadcast": group.broadcast_object({"a": [1, None]} if group.is_main else None),
        "smallest": (
            group.all_reduce_min(5 - group.rank),
            group.all_reduce_min(7 if group.is_main else None),
            group.all_reduce_min(None),
        ),
    }
    with group.collective_errors():
        found["all well"] = True
    try:
        with group.collective_errors():
            if group.rank == 2:
                raise UserError("No such thing.", "Use another.")
        found["one failed"] = "no error"
    except (UserError, RemoteUserError) as error:
        found["one failed"] = f"{type(error).__name__}: {error}"
    try:
        with group.collective_errors():
            raise UserError(f"Rank {group.rank} too.", "Use another.")
    except (UserError, RemoteUserError) as error:
        found["all failed"] = f"{type(error).__name__}: {error}"
    try:
        group.require_same({"seed": 0, "torch": "2.13" if group.rank < 2 else "2.12"})
    except (UserError, RemoteUserError) as error:
        found["different"] = f"{type(error).__name__}: {error}"
    try:  # tables with other keys
        group.require_same({"batch.4": 8} if group.rank < 2 else {"batch.4": 8, "batch.8": 16})
    except (UserError, RemoteUserError) as error:
        found["more"] = f"{type(error).__name__}: {error}"
    try:
        group.require_same({"batch": 8} if group.is_main else {"batch.4": 8})
    except (UserError, RemoteUserError) as error:
        found["other"] = f"{type(error).__name__}: {error}"
    group.require_same({"seed": 0})
    return found


def flags(group):
    """The third of three ranks raises a flag in the second call."""
    return [group.all_reduce_flags(4 if (group.rank, number) == (2, 1) else group.rank == 1) for number in range(4)]


def means(group):
    """Metrics of unequal parts of a batch: 1, 2 and 3 images."""
    averages = MetricAccumulator()
    for number in range(2):
        values = torch.full((group.rank + 1,), float(group.rank))
        norm = torch.tensor(10.0 * group.rank + number)
        averages.add({"scores/reals": values, "D/gradient_norm": norm, "D/skipped": torch.tensor(number == 1)})
    first = averages.reduce(group)
    return first, averages.reduce(group)


def weights(group):
    """Equal weights, then some with a flipped bit on rank 1."""
    generator = torch.Generator().manual_seed(0)
    named = {"G": [torch.randn(3, generator=generator)], "D": [torch.randn(2, 2, generator=generator), torch.ones(2)]}
    group.require_equal_weights(named)
    if group.rank == 1:
        named["D"][0].view(torch.int32)[1, 1] ^= 1
    try:
        group.require_equal_weights(named)
    except (UserError, RemoteUserError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def swapped(group):
    """The same numbers, in another order on rank 1."""
    named = {"G": [torch.ones(2), torch.zeros(2)]}
    if group.rank == 1:
        named["G"].reverse()
    try:
        group.require_equal_weights(named)
    except (UserError, RemoteUserError):
        return "ended"
    return "no error"


def tensors(group):
    mine = torch.full((2, 3, 4, 4), float(group.rank)).contiguous(memory_format=torch.channels_last)
    gathered = [float(other.mean()) for other in group.all_gather(torch.tensor([float(group.rank)]))]
    group.broadcast([mine])
    return float(mine.mean()), gathered, group.all_reduce(torch.tensor([1.0, group.rank])).tolist()


def everything():
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    found = [function(group) for function in (objects, flags, means, weights, swapped, tensors)]
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
        assert found["smallest"] == (3, 7, None)


def test_an_error_of_one_rank_is_raised_there_and_ends_all(seen):
    assert all(found["all well"] for found in seen[0])
    assert [found["one failed"].split(":")[0] for found in seen[0]] == [
        "RemoteUserError",
        "RemoteUserError",
        "UserError",
    ]
    assert all("No such thing." in found["one failed"] for found in seen[0])  # whose text the others quote
    assert [found["all failed"].split(":")[0] for found in seen[0]] == [
        "UserError",
        "RemoteUserError",
        "RemoteUserError",
    ]


def test_what_differs_between_ranks_is_named(seen):
    assert "Rank 2 has another torch than rank 0: 2.12 instead of 2.13" in seen[0][0]["different"]
    assert sum(found["different"].startswith("UserError") for found in seen[0]) == 1
    assert "Rank 2 has another batch.8 than rank 0: 16 instead of nothing" in seen[0][0]["more"]
    assert "Rank 1 has another batch than rank 0: nothing instead of 8" in seen[0][0]["other"]


def test_a_flag_of_one_rank_reaches_all_in_the_same_call_one_later(seen):
    assert seen[1] == ([0, 1, 4, 1],) * 3  # a flag that is still raised in the next call counts once


def test_metrics_are_means_over_all_images_and_skipped_updates_are_counted_once(seen):
    for first, second in seen[2]:
        assert first["scores/reals"] == pytest.approx((0 + 1 * 2 + 2 * 3) / 6)
        assert first["D/gradient_norm"] == pytest.approx(10.5)
        assert first["D/gradient_norm_max"] == 21
        assert first["D/skipped"] == 1
        assert second == {}


def test_one_flipped_bit_in_the_weights_of_a_rank_is_an_error_that_names_it(seen):
    error, *others = seen[3]
    assert "UserError: Rank 1 has another checksum of the weights of D than rank 0" in error
    assert "resumes from the last checkpoint" in error
    assert all(other.startswith("RemoteUserError") for other in others)


def test_weights_in_another_order_are_other_weights(seen):
    assert seen[4] == ("ended",) * 3


def test_tensors_of_rank_0_reach_all_and_sums_are_over_all(seen):
    assert seen[5] == ((0.0, [0.0, 1.0, 2.0], [3.0, 3.0]),) * 3


def test_a_single_process_is_told_its_own_flags_at_once():
    group = ProcessGroup.single_process(CPU)
    assert [group.all_reduce_flags(flags) for flags in (0, 2, 3, 0)] == [0, 2, 3, 0]


def test_a_gpu_is_at_most_eight_steps_behind_the_host(monkeypatch):
    """Else a run that is told to stop would first have to compute all that is queued."""
    queue = []

    def record_event():
        queue.append(f"step {recorded.pop(0)}")
        event = queue[-1]
        return SimpleNamespace(synchronize=lambda: queue.remove(event))

    recorded, lengths = list(range(20)), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(record_event=record_event))
    group = ProcessGroup.single_process(torch.device("cuda"))
    for _ in range(20):
        group.limit_steps_in_flight()
        lengths.append(len(queue))
    assert lengths == [1, 2, 3, 4, 5, 6, 7] + [8] * 13
    assert queue == [f"step {number}" for number in range(12, 20)]


class Done:
    def wait(self):
        return True


def test_a_flag_counts_one_call_later_and_once_though_it_is_still_raised(monkeypatch):
    theirs = iter([0, 1, 0, 0, 4, 0])  # of the other rank

    def all_reduce(flags, operation, *, group, async_op):
        assert async_op
        flags |= next(theirs)
        return Done()

    monkeypatch.setattr(pggan.distributed.process_group.dist, "all_reduce", all_reduce)
    group = ProcessGroup(RankInfo(0, 2, 0, 2), CPU, object(), None)
    assert [group.all_reduce_flags(flags) for flags in (0, 0, 2, 2, 0, 0)] == [0, 0, 1, 2, 0, 4]


# ---- losing one ------------------------------------------------------------------------------------------


def lose_one():
    group = ProcessGroup.connect(rank_from_environment(), CPU, 60)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.all_gather_object("there?")
    except PeerLost as error:
        return str(error)
    return "no error"


@pytest.mark.fault(15)
def test_a_rank_that_is_gone_is_noticed_in_the_next_collective():
    here, gone = in_processes(2, lose_one)
    assert gone.code == -signal.SIGKILL
    assert here.value.startswith("rank 0 on ")
    assert "lost its connection to the others" in here.value


def run_out_of_memory_on_rank_1():
    def run(group):
        if group.rank == 1:
            raise StepOutOfMemory("Out of memory at 8x8.", "It resumes.")
        group.barrier()
        return 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pggan.distributed.process_group, "ENDING_SECONDS", 0)
        return run_distributed(rank_from_environment(), "cpu", 60, run)


@pytest.mark.fault(15)
def test_a_rank_whose_memory_does_not_suffice_in_the_middle_of_a_step_lets_all_restart():
    """With EXIT_USER_ERROR, agents would not restart them."""
    others, itself = (outcome.value for outcome in in_processes(2, run_out_of_memory_on_rank_1))
    assert (others, itself) == (EXIT_PEER_LOST, EXIT_FAILED)


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA"), torch.AcceleratorError("CUDA error", 1)])
def test_an_error_of_ones_own_device_is_no_lost_rank(error):
    with pytest.raises(type(error)), ProcessGroup(RankInfo(0, 2, 0, 2), CPU, None, None).collective():
        raise error


def connected(rank):
    def run(group):
        return 0

    device = torch.device("cuda", 0) if rank == 0 else CPU
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
        patch.setattr(pggan.distributed.process_group, "device_of_rank", lambda *_: device)
        patch.setattr(
            pggan.distributed.process_group.dist, "init_process_group", partial(gloo, dist.init_process_group)
        )
        try:
            return run_distributed(rank_from_environment(), "auto", 60, run)
        except UserError as error:
            return str(error)


def gloo(connect, backend, **others):
    connect("gloo", **others)


def connected_with_another_device():
    return connected(int(os.environ["RANK"]))


def test_a_machine_that_goes_on_without_its_gpu_is_named_at_the_start():
    """As with devices=auto and a driver that fails."""
    said, silent = (outcome.value for outcome in in_processes(2, connected_with_another_device))
    assert "rank 1 on " in said
    assert "has a device of another kind than rank 0: cpu, not cuda." in said
    assert silent == EXIT_USER_ERROR


def test_two_ranks_with_one_gpu_are_named_unless_nccl_is_told_to_serve_both(monkeypatch):
    class Known(ProcessGroup):
        def all_gather_object(self, value):
            return [value] * 2

    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="GPU-1"))
    group = Known(RankInfo(0, 2, 0, 2), torch.device("cuda", 0), None, None)
    with pytest.raises(UserError, match="rank 1 has the same GPU as rank 0"):
        group.require_own_devices()
    monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")
    group.require_own_devices()
    monkeypatch.undo()
    Known(RankInfo(0, 2, 0, 2), CPU, None, None).require_own_devices()  # the CPU is shared


NCCL_SAYS = (
    "NCCL error: unhandled system error\nLast error:\nError while creating shared memory segment /dev/shm/nccl-1"
)


@pytest.mark.parametrize(
    ("error", "why"), [(RuntimeError(NCCL_SAYS), NCCL_SAYS), (TimeoutError(), "no answer within 7 s")]
)
def test_connections_of_nccl_that_cannot_be_opened_are_a_mistake_with_all_that_nccl_says(monkeypatch, error, why):
    def fails(device):
        raise error

    monkeypatch.setattr(pggan.distributed.process_group, "_sum_of_ones", fails)
    group = ProcessGroup(RankInfo(0, 2, 0, 2), torch.device("cuda"), None, None)
    with pytest.raises(UserError, match="can't send gradients to the other GPUs") as raised:
        group.open_nccl(7)
    assert why in raised.value.problem
    assert "NCCL_SOCKET_IFNAME" in raised.value.remedy
    for alone in (
        ProcessGroup.single_process(torch.device("cuda")),
        ProcessGroup(RankInfo(0, 2, 0, 2), torch.device("cpu"), None, None),
    ):
        alone.open_nccl(7)  # there is nothing to open
