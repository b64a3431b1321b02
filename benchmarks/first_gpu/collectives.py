"""Part 11: NCCL sums, exchanges and gathers, eagerly and in graphs, on one GPU and on all; its connections close."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from datetime import timedelta
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import FileStore  # type: ignore[attr-defined]

from benchmarks.first_gpu.context import Context, Item, Judgement
from benchmarks.first_gpu.record import Figures
from benchmarks.first_gpu.runs import Runs
from pggan.run.inspect import facts_of_run
from pggan.training.cuda_graphs import capture

NUMBERS = 2**17  # that a rank has for each other one
REPLAYS = 2
TIMEOUT = timedelta(minutes=1)  # less than an item may take


def items(context: Context) -> Iterator[Item]:
    """One rank, which sends nothing; then one per GPU, and a run that has the same bits on one GPU and on all."""
    yield "1 rank", partial(in_ranks, context, 1)
    if (count := torch.cuda.device_count()) > 1:
        yield f"{count} ranks", partial(in_ranks, context, count)
        yield "elastic", partial(elastic, context, count)


def in_ranks(context: Context, count: int) -> Figures:
    """What `of_rank` finds, in processes of their own: where connections do not close, they hang; true if on all."""
    store = context.folder / f"store-{count}"
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as pool:
        ranks = [pool.submit(of_rank, count, store, context.device.type, rank) for rank in range(count)]
        found = [rank.result() for rank in as_completed(ranks)]  # the first error, not that of those that wait for it
    return {name: all(one[name] for one in found) for name in found[0]}


def of_rank(count: int, store: Path, kind: str, rank: int) -> dict[str, bool]:
    """Whether the collectives of training are right on this rank, by name; on CUDA also those of captured steps."""
    device = torch.device(kind, rank if kind == "cuda" else 0)
    if kind == "cuda":
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    store_of_all = FileStore(str(store), count)
    dist.init_process_group(backend, store=store_of_all, rank=rank, world_size=count, timeout=TIMEOUT)
    everyone = torch.arange(count * count * NUMBERS).view(count, count, NUMBERS)  # [rank, rank, NUMBERS]
    mine = everyone[rank].flatten().to(device)
    expected = {all_reduce: everyone.sum(0), all_to_all: everyone[:, rank], all_gather: everyone}
    found = {}
    try:
        for collective, right in expected.items():
            name = collective.__name__
            found[name] = torch.equal(collective(mine, count).cpu().view_as(right), right)
            if kind == "cuda":
                found[f"captured {name}"] = torch.equal(replayed(collective, mine, count).view_as(right), right)
    finally:
        dist.destroy_process_group()  # waits for ever where a graph still holds on to a connection
    return found


def wait(work: dist.Work | None) -> None:
    """Let the stream wait for a collective, as in training."""
    assert work is not None, "asynchronous"
    work.wait()


def all_reduce(mine: Tensor, count: int) -> Tensor:
    """The sum over all ranks."""
    summed = mine.clone()
    wait(dist.all_reduce(summed, async_op=True))
    return summed


def all_to_all(mine: Tensor, count: int) -> Tensor:
    """Of every rank, the part for this one, as in elastic training."""
    received = torch.empty_like(mine)
    parts = [NUMBERS] * count
    wait(dist.all_to_all_single(received, mine, parts, parts, async_op=True))
    return received


def all_gather(mine: Tensor, count: int) -> Tensor:
    """Every rank's numbers."""
    gathered = mine.new_empty(count, len(mine))
    wait(dist.all_gather(list(gathered), mine, async_op=True))
    return gathered


def replayed(collective: Callable[[Tensor, int], Tensor], mine: Tensor, count: int) -> Tensor:
    """The result of replays, in host memory; the graph is gone when this returns."""
    replay, results = capture(lambda: {"result": collective(mine, count)})
    for _ in range(REPLAYS):
        results["result"].zero_()
        replay()
    return results["result"].cpu()


def elastic(context: Context, count: int) -> Figures:
    """Whether a run has the same bits on one GPU and on `count`, in elastic training; and both digests."""
    keys = ["elastic=true", f"distributed.elastic_chunks={count}", f"schedule.batch={8 * count}"]
    digests = {}
    with Runs(context) as runs:
        for devices in (1, count):
            name = f"elastic-{devices}"
            runs.end(runs.begin(name, *keys, f"devices={devices}"))
            digests[name] = facts_of_run(context.folder / name)["state_sha256"]
    return {"same bits": len({*digests.values()}) == 1, **digests}


def judge(context: Context, found: dict[str, Figures]) -> Judgement:
    """All results are right, and all processes have come to their end."""
    wrong = [f"{name} of {item}" for item, one in found.items() for name in one if one[name] is False]
    return Judgement(
        f"{', '.join(found)}: {'WRONG: ' + ', '.join(wrong) if wrong else 'all right'}, connections closed",
        "right, closed",
        not wrong,
    )
