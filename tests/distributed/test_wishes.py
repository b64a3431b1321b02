"""What processes wish for is agreed on one call later, once."""

import torch

import pggan.distributed.process_group
from pggan.distributed.process_group import ProcessGroup, RankInfo

CPU = torch.device("cpu")


class Done:
    def wait(self):
        return True


def test_alone_a_wish_is_granted_at_once():
    group = ProcessGroup.single_process(CPU)
    assert [group.all_reduce_flags(flags) for flags in (0, 2, 3, 0)] == [0, 2, 3, 0]


def test_a_wish_is_heard_one_call_later_and_once_though_it_is_still_there(monkeypatch):
    theirs = iter([0, 1, 0, 0, 4, 0])  # of the other process

    def all_reduce(flags, operation, *, group, async_op):
        assert async_op
        flags |= next(theirs)
        return Done()

    monkeypatch.setattr(pggan.distributed.process_group.dist, "all_reduce", all_reduce)
    group = ProcessGroup(RankInfo(0, 2, 0, 2), CPU, object(), None)
    assert [group.all_reduce_flags(flags) for flags in (0, 0, 2, 2, 0, 0)] == [0, 0, 1, 2, 0, 4]
