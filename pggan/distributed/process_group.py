"""The ranks of one run, seen from one of them: taking part, collectives on small values, errors that all share."""

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
from typing import Any, TypeVar
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, ReduceOp  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from pggan.core.devices import device_of_rank, synchronize
from pggan.core.errors import EXIT_FAILED, EXIT_PEER_LOST, EXIT_USER_ERROR, StepOutOfMemory, UserError
from pggan.distributed.launch import RENDEZVOUS_SECONDS

STEP_TIMEOUT = timedelta(minutes=30)  # of gradients and flags: a slow link, or an evaluation on one rank, is no fault
CONTROL_TIMEOUT = timedelta(days=1)  # while one rank prepares data, the others wait
ROUND, POLL_SECONDS = "round", 0.1
MAX_STEPS_IN_FLIGHT = 8  # steps that the host may be ahead of a GPU: enough to keep it busy; a save waits for them
T = TypeVar("T")
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class PeerLost(Exception):
    """Another rank went away in the middle of a collective."""


class RemoteUserError(Exception):
    """Another rank raised a UserError, which the text quotes, and reports it."""


@dataclass(frozen=True)
class RankInfo:
    """The rank of one process, among all and on its machine."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int


def rank_from_environment() -> RankInfo | None:
    """The rank that torchrun, or a launcher that sets the same variables, gave this process; None without one."""
    if not os.environ.keys() >= {*RANK_VARIABLES}:
        return None
    return RankInfo(*(int(os.environ[name]) for name in RANK_VARIABLES[:4]))


class ProcessGroup:
    """All ranks of a run.  Methods that communicate are called by all of them, in the same order."""

    def __init__(self, info: RankInfo, device: torch.device, control: Any, torch_group: Any = None) -> None:
        """Args: control: torch's group for small values in host memory; None in a single process.

        torch_group: of gradients; None: torch's default group.
        """
        self.rank, self.world_size = info.rank, info.world_size
        self.local_rank, self.local_world_size = info.local_rank, info.local_world_size
        self.device, self.is_main = device, info.rank == 0
        self.name = f"rank {info.rank} on {socket.gethostname()} (pid {os.getpid()})"
        self.torch_group, self._control = torch_group, control
        self._step_events: deque[torch.cuda.Event] = deque()  # in the queue of a GPU, one per step

    @classmethod
    def single_process(cls, device: torch.device) -> "ProcessGroup":
        """The group of a run in one process."""
        return cls(RankInfo(0, 1, 0, 1), device, None)

    @classmethod
    def connect(cls, info: RankInfo, device: torch.device) -> "ProcessGroup":
        """The group of all ranks, when they are there; raises UserError if that takes more than RENDEZVOUS_SECONDS."""
        try:
            store, _, _ = next(rendezvous("env://", timeout=timedelta(seconds=RENDEZVOUS_SECONDS)))
            store = getattr(store, "underlying_store", store)  # torchrun's prefix can differ among its machines
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore(agreed_prefix(store, info, RENDEZVOUS_SECONDS), store),
                rank=info.rank,
                world_size=info.world_size,
                timeout=STEP_TIMEOUT,
            )
            return cls(info, device, dist.new_group(backend="gloo", timeout=CONTROL_TIMEOUT))
        except (dist.DistError, RuntimeError) as error:
            place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}: {str(error).splitlines()[0]}"
            raise UserError(
                f"Rank {info.rank} of {info.world_size} did not find the others at {place}",
                "Start as many ranks as WORLD_SIZE says, and see that all machines can reach this address.",
            ) from error

    def open_nccl(self) -> None:
        """Let NCCL open its connections on GPUs; raises UserError, with all that NCCL says, where that fails."""
        try:
            if self.device.type == "cuda":
                dist.all_reduce(torch.ones(1, device=self.device))
                synchronize(self.device)
        except RuntimeError as error:
            remedy = "NCCL_DEBUG=INFO tells more; a container needs room for shared memory (docker run --shm-size=1g)."
            raise UserError(f"{self.name} can't send gradients to the other GPUs: {error}", remedy) from error

    def subgroup(self, size: int) -> "ProcessGroup | None":
        """The group of the ranks below `size`, for gradients; None on the other ranks.  Called by all ranks."""
        torch_group = dist.new_group(list(range(size))) if self.world_size > 1 else None
        info = RankInfo(self.rank, size, self.local_rank, min(size, self.local_world_size))
        return ProcessGroup(info, self.device, torch_group, torch_group) if self.rank < size else None

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            with self.collective():
                dist.barrier(self._control)

    def shutdown(self) -> None:
        """Wait for all ranks to end, and close the connections."""
        self.barrier()
        if self.world_size > 1:
            dist.destroy_process_group()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Around every collective: raises PeerLost when another rank is gone."""
        try:
            yield
        except (torch.OutOfMemoryError, torch.AcceleratorError):  # of this rank's own device
            raise
        except RuntimeError as error:
            raise PeerLost(f"{self.name} lost its connection to the others: {error}") from error

    def wait(self, work: dist.Work | None) -> None:
        """Wait for an asynchronous collective, if there is one."""
        if work is not None:
            with self.collective():
                work.wait()

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's `value`, in order of rank."""
        gathered = [value] * self.world_size
        if self._control is not None:
            with self.collective():
                dist.all_gather_object(gathered, value, group=self._control)
        return gathered

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's `value`."""
        return self.all_gather_object(value if self.is_main else None)[0]

    @contextmanager
    def collective_errors(self) -> Iterator[None]:
        """All ranks leave the block without an error, or one with its UserError, the others with RemoteUserError."""
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
        """The result of `function` on rank 0, None on the others; its UserError is an error of all ranks."""
        result = None
        with self.collective_errors():
            if self.is_main:
                result = function()
        return result

    def require_same(
        self, facts: Mapping[str, Any], remedy: str = "Give all ranks the same code, configuration and data."
    ) -> None:
        """Raise UserError, naming the rank and the fact, unless `facts` are the same on all ranks."""
        first, *others = self.all_gather_object(facts)
        with self.collective_errors():
            for rank, theirs in enumerate(others, 1):
                for name in first | theirs:  # tables may have other keys
                    here, there = first.get(name, "nothing"), theirs.get(name, "nothing")
                    if here != there:
                        problem = f"Rank {rank} has another {name} than rank 0: {there} instead of {here}."
                        raise UserError(problem, remedy)

    def limit_steps_in_flight(self) -> None:
        """Wait until a GPU is at most MAX_STEPS_IN_FLIGHT steps behind the host; called before every step."""
        if self.device.type == "cuda":
            self._step_events.append(torch.cuda.current_stream(self.device).record_event())
            if len(self._step_events) > MAX_STEPS_IN_FLIGHT:  # else the host would stop at a full queue
                self._step_events.popleft().synchronize()

    def all_reduce_flags(self, flags: int) -> int:
        """The bitwise OR of the `flags` of all ranks."""
        if self._control is None:
            return flags
        reduced = torch.tensor([flags], dtype=torch.int32)
        with self.collective():
            dist.all_reduce(reduced, ReduceOp.BOR, group=self.torch_group)
        return int(reduced)

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Overwrite `tensors` with those of rank 0."""
        if self._control is None:
            return
        with self.collective():
            for tensor in tensors:
                dense = tensor.contiguous()
                dist.broadcast(dense, 0)
                tensor.copy_(dense)

    def require_equal_weights(self, named: Mapping[str, list[Tensor]]) -> None:
        """Raise UserError, naming the rank, unless the weights by network name are the same bits on all ranks."""
        if self.world_size > 1:
            sums = {name: [int(weight.detach().view(torch.int32).sum()) for weight in named[name]] for name in named}
            self.require_same(
                {f"checksum of the weights of {name}": sum(map(mul, sums[name], count(1))) for name in named},
                "The same command resumes from the last checkpoint. If this comes back, the memory or the link of that "
                "machine is at fault.",
            )


def agreed_prefix(store: Any, info: RankInfo, seconds: float) -> str:
    """A prefix for the store's keys, the same on all ranks of this start: earlier ranks may have left keys there.

    The other ranks write who they are, again and again.  Rank 0 deletes what was there, waits for all of them, and
    publishes a prefix together with the list of those that it is for.
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
    raise RuntimeError("not all of them came")


def run_distributed(info: RankInfo, devices: str, run: Callable[[ProcessGroup], int]) -> int:
    """The exit code of this rank: of `run` with its one of `devices`, or that of an error on another rank."""
    group = ProcessGroup.connect(info, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    try:
        with group.collective_errors():  # on all ranks, most likely: only one reports it
            group.device = device_of_rank(devices, info.local_rank)
        group.require_same({"kind of device": group.device.type}, "`pggan doctor` on that machine says what it has.")
        with group.collective_errors():
            group.open_nccl()
        code = run(group)
        group.shutdown()
        return code
    except RemoteUserError:
        return EXIT_USER_ERROR
    except StepOutOfMemory as error:  # the others wait for this rank: all restart, with what fits then
        print(f"{group.name}: {error.problem}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    except PeerLost as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_PEER_LOST
