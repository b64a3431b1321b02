"""Gradients of the ranks of one machine, summed in memory that all of them see: no socket is as fast.

N ranks, P numbers in the gradients of the levels in use of one network, and S that are summed besides.
"""

import os
import secrets
from contextlib import nullcontext
from functools import partial
from math import prod
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.reducer import FlatBuffer, GradientReducer, Handle
from pggan.optim.state import Trainable

LINE = 16  # float32 in a line of the processor's cache, which two ranks must not write to at the same time


class SharedMemoryReducer(GradientReducer):
    """Sums gradients in float32: each rank finishes a slice of the sum, and collects the others' slices."""

    gradient_copies = 2

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self._buffers: dict[int, FlatBuffer] = {}
        self._rows: dict[int, Tensor] = {}  # [N, P + S] and what fills the last line
        self._read: dict[int, dist.Work | None] = {}  # done when all have collected the last sum

    def start_all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        key, rank = id(trainable), self.group.rank
        self.group.wait(self._read.get(key))
        buffer, sums = self._buffers.get(key), self._sums.pop(key)
        if buffer is None or not trainable.uses(buffer.weights):
            buffer = self._buffers[key] = FlatBuffer(trainable, sums.numel())
            self._rows[key] = shared_buffer(self.group, buffer.size)
        rows, total = self._rows[key][:, : buffer.size], buffer.flat
        buffer.fill(sums, rows[rank])
        barrier = partial(dist.barrier, group=self.group.torch_group, async_op=True)
        all_written = barrier()

        def wait() -> Tensor:
            self.group.wait(all_written)
            width = round_up_to_lines(-(-buffer.size // self.group.world_size))
            slices = list(zip(torch.split(rows, width, 1), torch.split(total, width), strict=True))
            if rank < len(slices):  # else the others have all
                summands, mine = slices[rank]
                torch.add(summands[0], summands[1], out=mine)
                for row in summands[2:]:
                    mine.add_(row)
                summands[rank].copy_(mine)
            self.group.wait(barrier())
            for other, (theirs, here) in enumerate(slices):
                if other != rank:
                    here.copy_(theirs[other])
            self._read[key] = barrier()
            return buffer.attach(total)

        return wait


def round_up_to_lines(numel: int) -> int:
    """The least multiple of LINE that is not below `numel`."""
    return -(-numel // LINE) * LINE


def shared_buffer(group: ProcessGroup, size: int) -> Tensor:
    """A row of zeros for each rank, seen by all of them.  float32 [N, at least `size`]

    It has no name in the file system: whatever ends the ranks, it ends with them.
    Raises UserError when there is too little memory.
    """
    shape = group.world_size, round_up_to_lines(size)
    with os.fdopen(os.memfd_create("gradients"), "wb") if group.is_main else nullcontext() as file:
        with group.collective_errors():
            if file is not None:
                reserve(file.fileno(), prod(shape) * torch.float32.itemsize)  # an error here, not a crash later
        path = group.broadcast_object(path_of(file))
        rows = torch.from_file(path, shared=True, size=prod(shape), dtype=torch.float32)
        group.barrier()  # whoever has mapped it keeps it
    return rows.view(shape)


def reserve(descriptor: int, size: int) -> None:
    """Make the file `size` bytes long; raises UserError when there is too little memory."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise UserError(
            f"No {size // 2**20} MiB of memory for the gradients of all ranks: {error.strerror}.",
            "Use fewer ranks, or gradients=bf16, which shares no memory.",
        ) from error


def shares_memory(group: ProcessGroup) -> bool:
    """Whether all ranks are on one machine, and can map memory of rank 0; called by all ranks."""
    if group.world_size == 1 or group.local_world_size < group.world_size or group.device.type != "cpu":
        return False
    token = secrets.token_hex()
    makes_it = group.is_main and hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("token"), "wb", buffering=0) if makes_it else nullcontext() as file:
        if file is not None:
            file.write(token.encode())
        path, expected = group.broadcast_object([path_of(file), token])
        return all(group.all_gather_object(text_at(path) == expected))


def path_of(file: IO[bytes] | None) -> str:
    """The path at which other ranks of this machine find an open file of this one that has no name."""
    return "" if file is None else f"/proc/{os.getpid()}/fd/{file.fileno()}"


def text_at(path: str) -> str:
    """The content of a file; empty when it can't be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
