"""Gradients of the ranks of one machine, summed in memory that all of them see: no socket is as fast.

N ranks, P numbers in the gradients of the levels in use of one network, and one for the loss.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.core.errors import UserError
from pggan.distributed.process_group import ProcessGroup
from pggan.optim.reducer import FlatBuffer, GradientReducer, Handle, waiter
from pggan.optim.state import Trainable

LINE = 16  # float32 in a line of the processor's cache, which two ranks must not write to at the same time
TOKEN_BYTES = 16


class SharedMemoryReducer(GradientReducer):
    """Sums gradients in float32: each rank finishes a slice of the sum, and collects the others' slices."""

    flat_tensors = 2

    def __init__(self, group: ProcessGroup) -> None:
        super().__init__()
        self.group = group
        self._buffers: dict[int, FlatBuffer] = {}
        self._rows: dict[int, Tensor] = {}  # [N, P + 1] and what fills the last line
        self._read: dict[int, Callable[[], None]] = {}  # waits until all have collected the last sum

    def all_reduce(self, trainable: Trainable, batch: int) -> Handle:
        key, rank = id(trainable), self.group.rank
        if key in self._read:
            with self.group.collective():
                self._read[key]()
        buffer = self._buffers.get(key)
        if buffer is None or not trainable.uses(buffer.weights):
            buffer = self._buffers[key] = FlatBuffer(trainable)
            self._rows[key] = shared_rows(self.group, buffer.size)
        rows, total = self._rows[key][:, : buffer.size], buffer.numbers
        buffer.fill(super().all_reduce(trainable, batch)(), rows[rank])
        all_written = self._barrier()

        def wait() -> Tensor:
            with self.group.collective():
                all_written()
                width = whole_lines(-(-buffer.size // self.group.world_size))
                slices = list(zip(torch.split(rows, width, 1), torch.split(total, width), strict=True))
                if rank < len(slices):  # else the others have all
                    summands, mine = slices[rank]
                    torch.add(summands[0], summands[1], out=mine)
                    for row in summands[2:]:
                        mine.add_(row)
                    summands[rank].copy_(mine)
                self._barrier()()
                for other, (theirs, here) in enumerate(slices):
                    if other != rank:
                        here.copy_(theirs[other])
                self._read[key] = self._barrier()
            return buffer.attach(total)

        return wait

    def _barrier(self) -> Callable[[], None]:
        return waiter(dist.barrier(group=self.group.torch_group, async_op=True))


def whole_lines(numbers: int) -> int:
    """The least multiple of LINE that is not below `numbers`."""
    return -(-numbers // LINE) * LINE


def shared_rows(group: ProcessGroup, size: int) -> Tensor:
    """A row of zeros for each rank, seen by all of them.  float32 [N, at least `size`]

    It has no name in the file system: whatever ends the ranks, it ends with them.
    Raises UserError when there is too little memory.
    """
    width = whole_lines(size)
    bytes_needed = group.world_size * width * torch.float32.itemsize
    descriptor = os.memfd_create("gradients") if group.is_main else None
    try:
        with group.collective_errors():
            if descriptor is not None:
                reserve(descriptor, bytes_needed)  # too little memory is an error here, not a crash later
        path = group.broadcast_object(path_of(descriptor))
        rows = torch.from_file(path, shared=True, size=group.world_size * width, dtype=torch.float32)
        group.barrier()  # whoever has mapped it keeps it
    finally:
        if descriptor is not None:
            os.close(descriptor)
    return rows.view(group.world_size, width)


def reserve(descriptor: int, size: int) -> None:
    """Make the file `size` bytes long; raises UserError when there is too little memory."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        raise UserError(
            f"No {size // 2**20} MiB of memory for the gradients of all ranks: {error.strerror}.",
            "Take fewer ranks, or gradients=bf16, which shares no memory.",
        ) from error


def shares_memory(group: ProcessGroup) -> bool:
    """Whether all ranks are on one machine, and can map memory of rank 0; called by all ranks."""
    if group.world_size == 1 or group.local_world_size < group.world_size or group.device.type != "cpu":
        return False
    token = secrets.token_hex(TOKEN_BYTES)
    descriptor = os.memfd_create("token") if group.is_main and hasattr(os, "memfd_create") else None
    try:
        if descriptor is not None:
            os.write(descriptor, token.encode())
        path, expected = group.broadcast_object([path_of(descriptor), token])
        return group.all_reduce_min(int(text_at(path) == expected)) == 1
    finally:
        if descriptor is not None:
            os.close(descriptor)


def path_of(descriptor: int | None) -> str:
    """The path at which other ranks of this machine find an open file of this one that has no name."""
    return "" if descriptor is None else f"/proc/{os.getpid()}/fd/{descriptor}"


def text_at(path: str) -> str:
    """The content of a file; empty when it can't be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
