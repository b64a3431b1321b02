"""The processes that train together, seen from one of them: what they tell each other besides gradients."""

import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, ReduceOp, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from pggan.core.errors import UserError
from pggan.distributed.connect import reason, who_answers, within

# A process that hangs is found by the Watchdog; these only end what nobody can be blamed for.
LONGEST_EXCHANGE = timedelta(minutes=30)  # a slow link is no fault
LONGEST_WAIT = timedelta(days=7)  # while one process prepares data, the others wait
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class PeerLost(Exception):
    """Another process went away in the middle of a common operation."""


class EndedElsewhere(Exception):
    """Another process has an error of the user's to tell, and tells it."""


@dataclass(frozen=True)
class Place:
    """One process among all: its number, and its number on its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int


def launched() -> Place | None:
    """Where this process is, if torchrun, or something that sets the same variables, started it among others.

    Raises UserError when some of the variables are there and others are not.
    """
    if "RANK" not in os.environ:
        return None
    missing = [name for name in RANK_VARIABLES if name not in os.environ]
    remedy = "Start with torchrun, or let devices=N start the processes; `unset RANK` trains alone."
    if missing:
        are = "is" if len(missing) == 1 else "are"
        raise UserError(
            f"RANK is set, as by a launcher of several processes, but {', '.join(missing)} {are} not.", remedy
        )
    said = {name: os.environ[name] for name in RANK_VARIABLES if name != "MASTER_ADDR"}
    if all(value.isdecimal() for value in said.values()):
        rank, size, local_rank, local_size, port = map(int, said.values())
        if rank < size and local_rank < local_size <= size and port < 2**16:
            return Place(rank, size, local_rank, local_size)
    listed = " ".join(f"{name}={value}" for name, value in said.items())
    raise UserError(f"A launcher of several processes has set what does not go together: {listed}.", remedy)


class World:
    """All processes of a run.  Every method but `is_first` and `name` is called by all of them, in the same order."""

    def __init__(
        self, place: Place, device: torch.device, control: ProcessGroup | None, store: TCPStore | None
    ) -> None:
        """Args: control: over which small things go, in host memory; None when there is one process only."""
        self.rank, self.size = place.rank, place.size
        self.local_rank, self.local_size = place.local_rank, place.local_size
        self.device = device
        self.store = store
        self.is_first = place.rank == 0
        self.name = f"process {place.rank} on {socket.gethostname()} (pid {os.getpid()})"
        self.names = [f"process {rank}" for rank in range(place.size)]  # more of them is known once they have met
        self.waiting_since: float | None = None  # for the others, in time.monotonic() seconds
        self.group: ProcessGroup | None = None  # over which gradients go; None: that of all
        self._control = control
        self._wishes = torch.zeros(1, dtype=torch.int32)
        self._wished = 0  # by this process, in the last call
        self._vote: dist.Work | None = None

    @classmethod
    def alone(cls, device: torch.device) -> "World":
        """One process."""
        return cls(Place(0, 1, 0, 1), device, None, None)

    @classmethod
    def joined(cls, place: Place, device: torch.device, patience: float) -> "World":
        """One of several processes; returns when all are there.

        Raises UserError when that takes longer than `patience` seconds.
        """
        limit = timedelta(seconds=patience)
        try:
            store, _, _ = within(patience, lambda: next(rendezvous("env://", timeout=limit)))
            backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(
                backend,
                store=PrefixStore("gradients", store),
                rank=place.rank,
                world_size=place.size,
                timeout=LONGEST_EXCHANGE,
            )
            world = cls(place, device, dist.new_group(backend="gloo", timeout=LONGEST_WAIT), store)
            world.names = world.gather(world.name)
            return world
        except (dist.DistError, RuntimeError, TimeoutError, PeerLost) as error:
            time.sleep(1)  # if it is because another one was lost, the launcher ends this one, and nobody is misled
            address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            why = who_answers(address) if isinstance(error, TimeoutError) else reason(error)
            raise UserError(
                f"Process {place.rank} of {place.size} did not find the others at {address}: {why}.",
                "Start as many processes as were announced, and see that all machines can reach this address.",
            ) from error

    def of_first(self, size: int) -> "World | None":
        """The first `size` processes as a world of their own for gradients, in those; called by all of them."""
        group = dist.new_group(list(range(size))) if self.size > 1 else None
        if self.rank >= size:
            return None
        place = Place(self.rank, size, self.local_rank, min(size, self.local_size))
        world = World(place, self.device, group if size > 1 else None, None)
        world.group = group
        return world

    def wait_for_all(self) -> None:
        """Return when all processes have come here."""
        if self.size > 1:
            with self.waiting():
                dist.barrier(self._control or self.group)

    def leave(self) -> None:
        """Wait for all to have come to their end, and close the connections."""
        self.wait_for_all()
        if self.size > 1:
            dist.destroy_process_group()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around everything that needs the others; raises PeerLost when one of them is gone."""
        self.waiting_since = time.monotonic()
        try:
            yield
        except RuntimeError as error:
            raise PeerLost(f"{self.name} lost its connection to the others: {reason(error)}") from error
        finally:
            self.waiting_since = None

    # ---- words -------------------------------------------------------------------------------------------

    def gather(self, text: str) -> list[str]:
        """What every process says, in order of rank."""
        if self._control is None:
            return [text]
        content = torch.frombuffer(bytearray(text.encode() + b"\0"), dtype=torch.uint8)
        with self.waiting():
            length = torch.tensor([len(content)])
            dist.all_reduce(length, ReduceOp.MAX, group=self._control)
            padded = torch.zeros(int(length), dtype=torch.uint8)
            padded[: len(content)] = content
            said = [torch.empty_like(padded) for _ in range(self.size)]
            dist.all_gather(said, padded, group=self._control)
        return [bytes(tensor.tolist()).split(b"\0", 1)[0].decode() for tensor in said]

    def tell(self, value: Any) -> Any:
        """The first process's `value`, which is plain enough for JSON."""
        return json.loads(self.gather(json.dumps(value) if self.is_first else "")[0])

    @contextmanager
    def together(self) -> Iterator[None]:
        """All processes leave this block well, or none does.

        Raises the UserError of this process; EndedElsewhere when it was another one that had one.
        """
        problem: UserError | None = None
        try:
            yield
        except UserError as error:
            problem = error
        failed = [rank for rank, said in enumerate(self.gather("failed" if problem else "")) if said]
        if problem is not None and self.rank == failed[0]:
            raise problem
        if failed:
            raise EndedElsewhere(f"ended by process {failed[0]}")

    def require_same(self, facts: Mapping[str, Any]) -> None:
        """Raise UserError, naming the process and the fact, unless `facts` are the same everywhere."""
        everyone = [json.loads(said) for said in self.gather(json.dumps(facts))]
        with self.together():
            first = everyone[0]
            for rank, theirs in enumerate(everyone):
                for name in {**first, **theirs}:  # tables may have other keys
                    here, there = first.get(name, "nothing"), theirs.get(name, "nothing")
                    if here != there:
                        raise UserError(
                            f"Process {rank} has another {name} than process 0: {there} instead of {here}.",
                            "Give all processes the same code, configuration and data.",
                        )

    # ---- wishes ------------------------------------------------------------------------------------------

    def agreed(self, wishes: int) -> int:
        """The bits of all processes' wishes, joined: those of the call before, so that nobody waits.

        A wish is made once, though it is there in two calls in a row.  Alone, those of this call.
        """
        if self._control is None:
            return wishes
        last = self._settled()
        self._wished = wishes & ~self._wished
        self._wishes = torch.tensor([self._wished], dtype=torch.int32)
        self._vote = dist.all_reduce(self._wishes, ReduceOp.BOR, group=self._control, async_op=True)
        return last

    def _settled(self) -> int:
        if self._vote is None:
            return 0
        with self.waiting():
            self._vote.wait()
        self._vote = None
        return int(self._wishes)

    # ---- numbers -----------------------------------------------------------------------------------------

    def total(self, values: Tensor) -> Tensor:
        """The sums over all processes of `values`, float64 in host memory."""
        return self._reduced(values, ReduceOp.SUM)

    def highest(self, values: Tensor) -> Tensor:
        """The maxima over all processes of `values`, float64 in host memory."""
        return self._reduced(values, ReduceOp.MAX)

    def lowest(self, value: int | None) -> int | None:
        """The smallest of all processes' values; None, which is no value, counts as the largest."""
        known = [int(said) for said in self.gather("" if value is None else str(value)) if said]
        return min(known, default=None)

    def _reduced(self, values: Tensor, operation: Any) -> Tensor:
        values = values.double().cpu()
        if self._control is not None and values.numel():
            with self.waiting():
                dist.all_reduce(values, operation, group=self._control)
        return values

    def from_first(self, tensors: list[Tensor]) -> None:
        """Overwrite `tensors` with those of the first process."""
        if self._control is None:
            return
        with self.waiting():
            for tensor in tensors:
                dense = tensor.contiguous()
                dist.broadcast(dense, 0)
                if dense.data_ptr() != tensor.data_ptr():
                    tensor.copy_(dense)

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Every process's `tensor`, in order of rank, on all of them; shapes and types are the same everywhere."""
        if self._control is None:
            return [tensor]
        everyone = [torch.empty_like(tensor) for _ in range(self.size)]
        with self.waiting():
            dist.all_gather(everyone, tensor)
        return everyone

    def require_equal_weights(self, named: Mapping[str, list[Tensor]]) -> None:
        """Raise UserError, naming the process, unless the weights by network name are the same bits everywhere."""
        if self._control is None:
            return
        digests = torch.stack([_digest(weights) for weights in named.values()]).cpu()
        everyone = [torch.empty_like(digests) for _ in range(self.size)]
        with self.waiting():
            dist.all_gather(everyone, digests, group=self._control)
        others = [rank for rank, theirs in enumerate(everyone) if not torch.equal(theirs, everyone[0])]
        with self.together():
            if others and self.is_first:
                theirs = everyone[others[0]]
                name = next(
                    name for name, a, b in zip(named, everyone[0], theirs, strict=True) if not torch.equal(a, b)
                )
                raise UserError(
                    f"The weights of {name} in process {others[0]} are no longer those of process 0.",
                    "Give the same command again: it goes on from the last checkpoint. If this comes back, that "
                    "machine's memory or link is at fault.",
                )


def _digest(weights: list[Tensor]) -> Tensor:
    """Two sums over the bits of all weights, one of which depends on their order; int64 [2], made on the device."""
    sums = torch.stack([weight.detach().view(torch.int32).sum(dtype=torch.int64) for weight in weights])
    return torch.stack([sums.sum(), (sums * torch.arange(1, len(sums) + 1, device=sums.device)).sum()])
