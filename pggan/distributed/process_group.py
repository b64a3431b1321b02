"""Connects the ranks of a run, and wraps their collectives."""

import json
import os
import socket
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from operator import mul
from threading import Thread
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import HashStore, PrefixStore, ReduceOp  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from pggan.core.devices import device_of_rank, synchronize
from pggan.core.errors import EXIT_PEER_LOST, EXIT_USER_ERROR, UserError
from pggan.distributed.launch import RENDEZVOUS_SECONDS

STEP_TIMEOUT = timedelta(minutes=30)  # longest wait for gradients; evaluations and slow interconnects delay gradients
CONTROL_TIMEOUT = timedelta(days=1)  # Ranks wait while one rank prepares the data, which can take hours.
ROUND, KEPT, POLL_SECONDS = "round", "kept", 0.1
# A GPU counts as hung if a training step, without evaluations and checkpoints, takes more than 300 seconds.
STALL_SECONDS = 300
MAX_STEPS_IN_FLIGHT = 8  # At most this many steps are in the GPU's queue, because a checkpoint waits for all these.
T = TypeVar("T")
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class PeerLost(Exception):
    """All ranks have to restart, because a rank was lost during a collective, or a step failed on one rank only."""


class RemoteUserError(Exception):
    """Another rank has raised and printed a UserError."""


@dataclass(frozen=True)
class RankInfo:
    """The rank of a process and the number of ranks, in the whole run and (`local_…`) on the machine of the process."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def rank_from_environment() -> RankInfo | None:
    """The RankInfo from torchrun's environment variables; None if a variable of RANK_VARIABLES is not set."""
    if not os.environ.keys() >= {*RANK_VARIABLES}:
        return None
    return RankInfo(*(int(os.environ[name]) for name in RANK_VARIABLES[:4]))


class ProcessGroup:
    """The ranks of a run; each method that communicates has to be called on all ranks, in the same order."""

    def __init__(self, info: RankInfo, device: torch.device, control: Any, group: Any = None, kept: Any = None) -> None:
        """Torch groups for objects (`control`; None: one rank) and tensors (`group`); `kept`: the store of `keep`."""
        self.rank, self.world_size = info.rank, info.world_size
        self.local_rank, self.local_world_size = info.local_rank, info.local_world_size
        self.device, self.is_main = device, info.rank == 0
        self.name = f"rank {info.rank} on {socket.gethostname()} (pid {os.getpid()})"
        self.torch_group, self._control = group, control
        self._kept: Any = kept or HashStore()
        self._step_events: deque[torch.cuda.Event] = deque()

    @classmethod
    def single_process(cls, device: torch.device) -> "ProcessGroup":
        return cls(RankInfo(0, 1, 0, 1), device, None)

    @classmethod
    def connect(cls, info: RankInfo, device: torch.device) -> "ProcessGroup":
        """Connect with all other ranks; raises UserError if a rank is missing after RENDEZVOUS_SECONDS."""
        try:
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=RENDEZVOUS_SECONDS)))
            # Torchrun may prefix the store's keys differently on each machine; the underlying store has no prefix.
            store = getattr(store, "underlying_store", store)
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore(agreed_prefix(store, info, RENDEZVOUS_SECONDS), store),
                rank=info.rank,
                world_size=info.world_size,
                timeout=STEP_TIMEOUT,
            )
            return cls(info, device, dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT), kept=store)
        except (dist.DistError, RuntimeError) as error:
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {str(error).splitlines()[0]}"
            raise UserError(
                f"Rank {info.rank} of {info.world_size} did not find the other ranks at {place}",
                "Start as many ranks as WORLD_SIZE says, and make sure that all machines can reach MASTER_ADDR.",
            ) from error

    def open_nccl(self) -> None:
        """Let NCCL connect the GPUs by a first all-reduce; raises UserError if this fails."""
        try:
            if self.device.type == "cuda":
                dist.all_reduce(torch.ones(1, device=self.device))
                synchronize(self.device)
        except RuntimeError as error:
            remedy = "Set NCCL_DEBUG=INFO to see more. A container needs shared memory: docker run --shm-size=1g."
            raise UserError(f"{self.name} can't send gradients to the other GPUs: {error}", remedy) from error

    def subgroup(self, size: int) -> "ProcessGroup | None":
        """The group of the first `size` ranks; None on other ranks, which have to call this method, too."""
        torch_group = dist.new_group(list(range(size))) if self.world_size > 1 else None
        info = RankInfo(self.rank, size, self.local_rank, min(size, self.local_world_size))
        return ProcessGroup(info, self.device, torch_group, torch_group) if self.rank < size else None

    def barrier(self) -> None:
        self.all_gather_object(None)

    def shutdown(self) -> None:
        self.barrier()
        if self.world_size > 1:
            dist.destroy_process_group()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Raise PeerLost if a collective in the `with` block raises RuntimeError because a rank was lost."""
        try:
            yield
        except (torch.OutOfMemoryError, torch.AcceleratorError):  # This rank's own GPU failed; no rank was lost.
            raise
        except RuntimeError as error:
            raise PeerLost(f"{self.name} lost its connection to the other ranks: {error}") from error

    def start(self, collective: Callable[..., dist.Work | None], *arguments: Any) -> dist.Work | None:
        with self.collective():  # NCCL reports most errors when a collective starts, not in `wait`.
            return collective(*arguments, group=self.torch_group, async_op=True)

    def wait(self, work: dist.Work | None) -> None:
        if work is not None:
            with self.collective():
                work.wait()

    def keep(self, values: dict[str, Any]) -> None:
        """Add `values` to the dictionary that the method `kept` returns on all ranks, even after the ranks restart."""
        self._kept.append(KEPT, f"{json.dumps(values)}\n")

    def kept(self) -> dict[str, Any]:
        lines = self._kept.get(KEPT).splitlines() if self._kept.check([KEPT]) else ()
        return {key: value for line in lines for key, value in json.loads(line).items()}

    def all_gather_object(self, value: Any) -> list[Any]:
        gathered = [value] * self.world_size
        if self._control is not None:
            with self.collective():
                dist.all_gather_object(gathered, value, group=self._control)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Return rank 0's `value` on all ranks."""
        return self.all_gather_object(value if self.is_main else None)[0]

    @contextmanager
    def collective_errors(self) -> Iterator[None]:
        """If a rank raises UserError in the `with` block, all other ranks raise RemoteUserError after the block."""
        problem: UserError | None = None
        try:
            yield
        except UserError as error:
            problem = error
        texts = self.all_gather_object(None if problem is None else str(problem))
        failed = next((rank for rank, text in enumerate(texts) if text is not None), None)
        if failed is not None:
            remote = RemoteUserError(f"Rank {failed}: {texts[failed]}")
            raise problem if problem is not None and self.rank == failed else remote

    def on_main(self, function: Callable[[], T]) -> T | None:
        """Call `function` on rank 0; other ranks return None, or raise RemoteUserError if rank 0 raises UserError."""
        result = None
        with self.collective_errors():
            if self.is_main:
                result = function()
        return result

    def require_same(
        self, facts: Mapping[str, Any], remedy: str = "Give all ranks the same code, configuration and data."
    ) -> None:
        """Raise UserError unless `facts` {name: value} is the same on all ranks."""
        first, *others = self.all_gather_object(facts)
        with self.collective_errors():
            for rank, theirs in enumerate(others, 1):
                for name in first | theirs:  # Ranks may have different keys.
                    here, there = first.get(name, "nothing"), theirs.get(name, "nothing")
                    if here != there:
                        problem = f"Rank {rank} has another {name} than rank 0: {there} instead of {here}."
                        raise UserError(problem, remedy)

    def limit_steps_in_flight(self) -> None:
        """After a step, wait until the GPU's queue has at most MAX_STEPS_IN_FLIGHT steps."""
        if self.device.type == "cuda":
            self._step_events.append(torch.cuda.current_stream(self.device).record_event())
            if len(self._step_events) > MAX_STEPS_IN_FLIGHT:  # A full queue would make CUDA block the CPU in mid-step.
                self._step_events.popleft().synchronize()

    def end_if_stalled(self) -> None:
        """End this process if the GPU hangs, because collectives in CUDA graphs have no timeouts.  Runs in a thread."""
        newest, since = None, time.monotonic()
        while True:
            time.sleep(1)
            event = self._step_events[-1] if self._step_events else None
            if event is not newest or event is None or event.query():  # type: ignore[no-untyped-call]
                newest, since = event, time.monotonic()
            elif time.monotonic() - since > STALL_SECONDS:
                remedy = "All ranks restart. If this error comes back, set compute.cuda_graphs=off."
                print(f"{self.name}: the GPU has not finished a step for {STALL_SECONDS} s. {remedy}", file=sys.stderr)
                os._exit(EXIT_PEER_LOST)

    def all_reduce_flags(self, flags: int) -> int:
        """Return the bitwise OR of all ranks' `flags`."""
        if self._control is None:
            return flags
        reduced = torch.tensor([flags], dtype=torch.int32)
        with self.collective():
            dist.all_reduce(reduced, ReduceOp.BOR, group=self.torch_group)
        return int(reduced)

    def broadcast(self, tensors: list[Tensor]) -> None:
        with self.collective():
            for tensor in tensors if self.world_size > 1 else ():
                dense = tensor.contiguous()
                dist.broadcast(dense, 0)
                tensor.copy_(dense)

    def require_equal_weights(self, named: Mapping[str, list[Tensor]]) -> None:
        """Raise UserError unless all ranks have exactly the same weights; `named` is {network name: weights}."""
        if self.world_size > 1:
            sums = {name: [int(weight.detach().view(torch.int32).sum()) for weight in named[name]] for name in named}
            self.require_same(
                {f"checksum of the weights of {name}": sum(map(mul, sums[name], count(1))) for name in named},
                "Run the same command again: it resumes from the last checkpoint. If this error comes back, the memory "
                "or the network connection of that rank's machine is faulty.",
            )


def agreed_prefix(store: Any, info: RankInfo, seconds: float) -> str:
    """Agree with all ranks on a new prefix for keys in `store`, which may still contain keys from before a restart.

    Rank 0 first deletes the ids in the store, so each other rank writes its random id again and again.  Then rank 0
    publishes all ids; the id of rank 0 is the prefix.  Each other rank waits until the published ids include its own.
    """
    own, others = uuid4().hex, [f"rank-{rank}" for rank in range(1, info.world_size)]
    if info.rank == 0:
        for key in others:
            store.delete_key(key)
        store.wait(others, timedelta(seconds=seconds))
        store.set(ROUND, " ".join([own, *(store.get(key).decode() for key in others)]))
        return own
    for _ in range(int(seconds / POLL_SECONDS)):
        store.set(others[info.rank - 1], own)
        if store.check([ROUND]) and own in (published := store.get(ROUND).decode().split()):
            return str(published[0])
        time.sleep(POLL_SECONDS)
    raise RuntimeError("not all ranks connected in time")


def run_distributed(info: RankInfo, devices: str, run: Callable[[ProcessGroup], int]) -> int:
    """Connect this rank, choose its device by the setting `devices`, and call `run`; returns the exit code."""
    group = ProcessGroup.connect(info, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        with group.collective_errors():
            group.device = device_of_rank(devices, info.local_rank)
        group.require_same({"kind of device": group.device.type}, "Compare what `pggan doctor` says on each machine.")
        with group.collective_errors():
            group.open_nccl()
        Thread(target=group.end_if_stalled, name="stall", daemon=True).start()
        code = run(group)
        group.shutdown()
        return code
    except RemoteUserError:
        return EXIT_USER_ERROR
    except PeerLost as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_PEER_LOST
