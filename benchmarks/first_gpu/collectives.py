"""Part 11: NCCL starts and ends, with one rank, which sends nothing: sums, eager and captured, are its own numbers."""

from collections.abc import Iterator
from functools import partial

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore

from benchmarks.first_gpu.context import Context, Item, Judgement, in_new_process
from benchmarks.first_gpu.record import Figures
from pggan.training.cuda_graphs import capture

NUMBERS = 2**20
REPLAYS = 3


def items(context: Context) -> Iterator[Item]:
    """In a process of its own: one whose connections do not close hangs."""
    yield "all_reduce", partial(in_new_process, all_reduce, context.device)


def all_reduce(device: torch.device) -> Figures:
    """Sums of one rank, which are its own numbers; replays double what is summed before."""
    torch.cuda.set_device(device.index or 0)
    dist.init_process_group("cpu:gloo,cuda:nccl", store=HashStore(), rank=0, world_size=1)
    try:
        return {"eager": eager(device), "captured": captured(device)}
    finally:
        dist.destroy_process_group()  # waits for ever where a graph still holds on to a connection


def eager(device: torch.device) -> bool:
    """Whether a sum is right, with the asynchronous calls that training makes."""
    numbers = torch.arange(NUMBERS, device=device, dtype=torch.float32)
    work = dist.all_reduce(numbers, async_op=True)
    work.wait()
    return torch.equal(numbers.cpu(), torch.arange(NUMBERS, dtype=torch.float32))


def captured(device: torch.device) -> bool:
    """Whether replays of a captured sum are right; the graph is gone when this returns."""
    numbers = torch.ones(NUMBERS, device=device)

    def double() -> dict[str, torch.Tensor]:
        numbers.mul_(2)
        dist.all_reduce(numbers, async_op=True).wait()
        return {"numbers": numbers}

    replay, _ = capture(double)
    for _ in range(REPLAYS):
        replay()
    return torch.equal(numbers.cpu(), torch.full((NUMBERS,), 2.0**REPLAYS))


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """Both sums are right, and the process has come to its end."""
    one = found["all_reduce"]
    words = [f"{name} sum {'right' if one[name] else 'WRONG'}" for name in ("eager", "captured")]
    return Judgement(f"NCCL: {', '.join(words)}, connections closed", "right, closed", one["eager"] and one["captured"])
