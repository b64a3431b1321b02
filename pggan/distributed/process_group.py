"""The ranks of one run, seen from one of them: taking part, collectives on small values, errors that all share."""

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
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ReduceOp, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pggan.core.devices import device_of_rank, synchronize
from pggan.core.errors import EXIT_FAILED, EXIT_PEER_LOST, EXIT_USER_ERROR, StepOutOfMemory, UserError
from pggan.distributed.connect import call_with_timeout, connection_problem, reason

# The watchdog finds a stalled rank; these timeouts only end what no rank can be blamed for.
GRADIENT_TIMEOUT = timedelta(minutes=30)  # a slow link of CPUs is no fault
CONTROL_TIMEOUT = timedelta(days=7)  # while one rank prepares data, the others wait
MAX_STEPS_IN_FLIGHT = 8  # steps that the host may be ahead of a GPU: enough to keep it busy; a save waits for them
ENDING_SECONDS = 5  # after a loss, for the agent to end this process: it knows better what has happened
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
    """The rank that torchrun, or a launcher that sets the same variables, gave this process; None without one.

    Raises UserError when the variables are incomplete or contradict each other.
    """
    if "RANK" not in os.environ:
        return None
    remedy = "Start with torchrun, or let devices=N start the ranks; `unset RANK` trains in one process."
    if missing := [name for name in RANK_VARIABLES if name not in os.environ]:
        raise UserError(f"A launcher of several ranks has set RANK, but not {', '.join(missing)}.", remedy)
    values = {name: os.environ[name] for name in RANK_VARIABLES if name != "MASTER_ADDR"}
    if all(value.isdecimal() for value in values.values()):
        rank, world_size, local_rank, local_world_size, port = map(int, values.values())
        if rank < world_size and local_rank < local_world_size <= world_size and port < 2**16:
            return RankInfo(rank, world_size, local_rank, local_world_size)
    listed = " ".join(f"{name}={value}" for name, value in values.items())
    raise UserError(f"A launcher has set rank variables that contradict each other: {listed}.", remedy)


class ProcessGroup:
    """All ranks of a run.  Methods that communicate are called by all of them, in the same order."""

    def __init__(
        self, info: RankInfo, device: torch.device, control: dist.ProcessGroup | None, store: TCPStore | None
    ) -> None:
        """Args: control: group for small values in host memory; None in a single process."""
        self.rank, self.world_size = info.rank, info.world_size
        self.local_rank, self.local_world_size = info.local_rank, info.local_world_size
        self.device, self.store = device, store
        self.is_main = info.rank == 0
        self.name = f"rank {info.rank} on {socket.gethostname()} (pid {os.getpid()})"
        self.names = [f"rank {rank}" for rank in range(info.world_size)]  # `connect` completes them
        self.waiting_since: float | None = None  # time.monotonic() seconds at which the present collective began
        self.waits_for_device = False  # at `waiting_since`
        self._step_events: deque[torch.cuda.Event] = deque()  # in the queue of a GPU, one per step
        self.torch_group: dist.ProcessGroup | None = None  # of gradients; None: the default group
        self._control = control
        self._flags = torch.zeros(1, dtype=torch.int32)
        self._raised = 0  # flags of this rank in the last call
        self._reduce: dist.Work | None = None

    @classmethod
    def single_process(cls, device: torch.device) -> "ProcessGroup":
        """The group of a run in one process."""
        return cls(RankInfo(0, 1, 0, 1), device, None, None)

    @classmethod
    def connect(cls, info: RankInfo, device: torch.device, timeout_seconds: float) -> "ProcessGroup":
        """The group of all ranks, when they are there; raises UserError if that takes more than `timeout_seconds`."""
        try:
            waiting = rendezvous("env://", timeout=timedelta(seconds=timeout_seconds))
            store, _, _ = call_with_timeout(timeout_seconds, lambda: next(waiting))
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=PrefixStore("gradients", store),
                rank=info.rank,
                world_size=info.world_size,
                timeout=GRADIENT_TIMEOUT,
            )
            group = cls(info, device, _new_group(backend="gloo", timeout=CONTROL_TIMEOUT), store)
            group.names = group.all_gather_object(group.name)
            return group
        except (dist.DistError, RuntimeError, TimeoutError, PeerLost) as error:
            time.sleep(1)  # if another rank was lost, the launcher ends this one, and nobody is misled
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            why = connection_problem(address) if isinstance(error, TimeoutError) else reason(error)
            raise UserError(
                f"Rank {info.rank} of {info.world_size} did not find the others at {address}: {why}.",
                "Start as many ranks as WORLD_SIZE says, and see that all machines can reach this address.",
            ) from error

    def require_own_devices(self) -> None:
        """Raise UserError, on one rank, unless all have the same kind of device, and no two the same GPU."""
        uuid = str(torch.cuda.get_device_properties(self.device).uuid) if self.device.type == "cuda" else None
        everyone = self.all_gather_object([self.device.type, uuid])
        shared = os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
        with self.collective_errors():
            kind = everyone[0][0]
            for rank, device in enumerate(everyone):
                if device[0] != kind:
                    raise UserError(
                        f"{self.names[rank]} has a device of another kind than rank 0: {device[0]}, not {kind}.",
                        "Set devices= to the same kind everywhere; `pggan doctor` on that machine says what it has.",
                    )
                if uuid is not None and everyone.index(device) != rank and not shared:
                    raise UserError(
                        f"{self.names[rank]} has the same GPU as {self.names[everyone.index(device)]}.",
                        "Start one rank per GPU; devices=cpu shares the CPU among any number.",
                    )

    def open_nccl(self, timeout_seconds: float) -> None:
        """Let NCCL open its connections now, on GPUs: the first collective does, and nothing limits how long it takes.

        Raises UserError, with all that NCCL says, unless that works within `timeout_seconds`.  Called by all ranks.
        """
        if self.world_size == 1 or self.device.type != "cuda":
            return
        try:
            call_with_timeout(timeout_seconds, partial(_sum_of_ones, self.device))
        except (RuntimeError, TimeoutError) as error:
            why = str(error).strip() or f"no answer within {timeout_seconds:g} s"
            raise UserError(
                f"{self.name} can't send gradients to the other GPUs: {why}",
                "NCCL_DEBUG=INFO tells more. NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME name the network between the "
                "machines; a container needs room for shared memory (docker run --shm-size=1g).",
            ) from error

    def subgroup(self, size: int) -> "ProcessGroup | None":
        """The group of the ranks below `size`, for gradients; None on the other ranks.  Called by all ranks."""
        torch_group = _new_group(ranks=list(range(size))) if self.world_size > 1 else None
        if self.rank >= size:
            return None
        info = RankInfo(self.rank, size, self.local_rank, min(size, self.local_world_size))
        group = ProcessGroup(info, self.device, torch_group if size > 1 else None, None)
        group.torch_group = torch_group
        return group

    def barrier(self) -> None:
        """Wait for all ranks."""
        if self.world_size > 1:
            with self.collective():
                dist.barrier(self._control or self.torch_group)

    def shutdown(self) -> None:
        """Wait for all ranks to end, and close the connections."""
        self.barrier()
        if self.world_size > 1:
            dist.destroy_process_group()

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Note since when this rank waits, around every collective; raises PeerLost when another rank is gone."""
        self.waiting_since = time.monotonic()
        try:
            yield
        except (torch.OutOfMemoryError, torch.AcceleratorError):  # of this rank's own device
            raise
        except RuntimeError as error:
            raise PeerLost(f"{self.name} lost its connection to the others: {reason(error)}") from error
        finally:
            self.waiting_since = None

    def wait_for_device(self, wait: Callable[[], object] | None = None) -> None:
        """Wait for the GPU, where the watchdog sees it: all its work so far, or what `wait` waits for.

        A collective of NCCL blocks the GPU, not this thread.  Called before the host reads a value from the GPU: if
        another rank is gone, that read would block for good, and the watchdog could not see it.  In a single process,
        reads wait by themselves.
        """
        if self.device.type == "cuda" and (self.world_size > 1 or wait is not None):
            self.waiting_since, self.waits_for_device = time.monotonic(), True
            try:
                (wait or partial(synchronize, self.device))()
            finally:
                self.waiting_since, self.waits_for_device = None, False

    def wait(self, work: dist.Work | None) -> None:
        """Wait for an asynchronous collective, if there is one."""
        if work is not None:
            with self.collective():
                work.wait()

    def all_gather_object(self, value: Any) -> list[Any]:
        """Every rank's `value`, which is plain enough for JSON, in order of rank."""
        text = json.dumps(value)
        if self._control is None:
            return [json.loads(text)]
        content = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        with self.collective():
            length = torch.tensor([len(content)])
            dist.all_reduce(length, ReduceOp.MAX, group=self._control)
            padded = torch.zeros(int(length), dtype=torch.uint8)
            padded[: len(content)] = content
            gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
            dist.all_gather(gathered, padded, group=self._control)
        return [json.loads(bytes(tensor.tolist()).split(b"\0", 1)[0]) for tensor in gathered]

    def broadcast_object(self, value: Any) -> Any:
        """Rank 0's `value`, which is plain enough for JSON."""
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

    def require_same(
        self, facts: Mapping[str, Any], remedy: str = "Give all ranks the same code, configuration and data."
    ) -> None:
        """Raise UserError, naming the rank and the fact, unless `facts` are the same on all ranks."""
        everyone = self.all_gather_object(facts)
        with self.collective_errors():
            first = everyone[0]
            for rank, theirs in enumerate(everyone):
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
                self.wait_for_device(self._step_events.popleft().synchronize)

    def all_reduce_flags(self, flags: int) -> int:
        """Start the all-reduce (bitwise OR) of `flags`; returns the result of the one before, so that no rank waits.

        A single process gets its own `flags`.  A flag that is raised in two calls in a row counts once.
        """
        if self._control is None:
            return flags
        self.wait(self._reduce)
        reduced = int(self._flags)
        self._raised = flags & ~self._raised
        self._flags = torch.tensor([self._raised], dtype=torch.int32)
        self._reduce = dist.all_reduce(self._flags, ReduceOp.BOR, group=self._control, async_op=True)
        return reduced

    def reset_flags(self) -> None:
        """Forget the flags of the last call of `all_reduce_flags`, whose result nobody has seen yet."""
        self.wait(self._reduce)
        self._reduce, self._flags, self._raised = None, torch.zeros(1, dtype=torch.int32), 0

    def all_reduce(self, values: Tensor, operation: Any = ReduceOp.SUM) -> Tensor:
        """The sums (or what else `operation` says) over all ranks of `values`, float64 in host memory."""
        self.wait_for_device()
        values = values.double().cpu()
        if self._control is not None and values.numel():
            with self.collective():
                dist.all_reduce(values, operation, group=self._control)
        return values

    def all_reduce_min(self, value: int | None) -> int | None:
        """The smallest of all ranks' values; None, which is no value, counts as the largest."""
        return min((other for other in self.all_gather_object(value) if other is not None), default=None)

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Overwrite `tensors` with those of rank 0."""
        if self._control is None:
            return
        with self.collective():
            for tensor in tensors:
                dense = tensor.contiguous()
                dist.broadcast(dense, 0)
                if dense.data_ptr() != tensor.data_ptr():
                    tensor.copy_(dense)
        self.wait_for_device()

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's `tensor`, in order of rank; shapes and types are the same on all ranks."""
        if self._control is None:
            return [tensor]
        gathered = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with self.collective():
            dist.all_gather(gathered, tensor)
        self.wait_for_device()
        return gathered

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """Every rank's `tensor`, in order of rank, in host memory of rank 0; nothing on the other ranks.

        Shapes and types are the same on all ranks.
        """
        self.wait_for_device()
        mine = tensor.cpu()
        if self._control is None:
            return [mine]
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)] if self.is_main else []
        with self.collective():
            dist.gather(mine, gathered or None, group_dst=0, group=self._control)
        return gathered

    def require_equal_weights(self, named: Mapping[str, list[Tensor]]) -> None:
        """Raise UserError, naming the rank, unless the weights by network name are the same bits on all ranks."""
        if self._control is not None:
            self.wait_for_device()
            self.require_same(
                {f"checksum of the weights of {name}": _checksum(weights) for name, weights in named.items()},
                "The same command resumes from the last checkpoint. If this comes back, the memory or the link of that "
                "machine is at fault.",
            )


def run_distributed(info: RankInfo, devices: str, timeout_seconds: float, run: Callable[[ProcessGroup], int]) -> int:
    """The exit code of this rank: of `run` with its one of `devices`, or that of an error on another rank.

    Raises UserError when the others are not found within `timeout_seconds`.
    """
    problem: UserError | None = None
    try:
        device = device_of_rank(devices, info.local_rank, info.local_world_size)
    except UserError as error:  # on all ranks, most likely: only one reports it
        problem, device = error, torch.device("cpu")
    group = ProcessGroup.connect(info, device, timeout_seconds)
    try:
        with group.collective_errors():
            if problem is not None:
                raise problem
        group.require_own_devices()
        with group.collective_errors():
            group.open_nccl(timeout_seconds)
        code = run(group)
        group.shutdown()
        return code
    except RemoteUserError:
        return EXIT_USER_ERROR
    except StepOutOfMemory as error:  # the others wait for this rank: all restart, with what fits then
        print(f"{group.name}: {error.problem}", file=sys.stderr, flush=True)
        return EXIT_FAILED
    except PeerLost as error:
        time.sleep(ENDING_SECONDS)
        print(error, file=sys.stderr, flush=True)
        return EXIT_PEER_LOST


def _sum_of_ones(device: torch.device) -> float:
    """The number of ranks, by their GPUs."""
    with torch.cuda.device(device):  # of this thread
        one = torch.ones(1, device=device)
        dist.all_reduce(one)
        return one.item()


def _new_group(**settings: Any) -> dist.ProcessGroup | None:
    """A new group of ranks; None on ranks that are not in it."""
    made = dist.new_group(**settings)
    return made if isinstance(made, dist.ProcessGroup) else None


def _checksum(weights: list[Tensor]) -> list[int]:
    """Two sums over the bits of all weights, one of which depends on their order; made on the device."""
    sums = torch.stack([weight.detach().view(torch.int32).sum(dtype=torch.int64) for weight in weights])
    return torch.stack([sums.sum(), (sums * torch.arange(1, len(sums) + 1, device=sums.device)).sum()]).tolist()
