"""Gradients of processes on one machine added up in memory that all of them see: no socket is as fast.

N processes, P numbers in the gradients of one network that are in use, and one for the loss.
"""

import os
import secrets
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from pggan.core.errors import UserError
from pggan.distributed.process_group import World
from pggan.training.gradients.reducer import Arrival, Exchange, Flat, finisher
from pggan.training.state import Player

LINE = 16  # float32 in a line of the processor's cache, which two processes must not write to at the same time
TOKEN_BYTES = 16


class SharedMemory(Exchange):
    """Everything is added up as float32; each process finishes a slice of it, and all collect the slices."""

    flat_tensors = 2

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self._flats: dict[int, Flat] = {}
        self._rows: dict[int, Tensor] = {}  # [N, P + 1] and what fills the last line
        self._read: dict[int, Callable[[], None]] = {}  # waits until all have collected the last sum

    def send(self, player: Player, batch: int) -> Arrival:
        flat, key = self._flats.get(id(player)), id(player)
        if key in self._read:
            with self.world.waiting():
                self._read[key]()
        if flat is None or not flat.fits(player):
            flat = self._flats[key] = Flat(player)
            self._rows[key] = shared_rows(self.world, flat.size)
        rows, total, rank = self._rows[key], flat.numbers, self.world.rank
        flat.fill(super().send(player, batch)(), rows[rank, : flat.size])
        all_there = self._meet()

        def arrive() -> Tensor:
            with self.world.waiting():
                all_there()
                mine = self._slice(rank, flat.size)
                torch.add(rows[0, mine], rows[1, mine], out=total[mine])
                for row in rows[2:]:
                    total[mine].add_(row[mine])
                rows[rank, mine] = total[mine]
                self._meet()()
                for other in range(self.world.size):
                    if other != rank:
                        theirs = self._slice(other, flat.size)
                        total[theirs] = rows[other, theirs]
                self._read[key] = self._meet()
            return flat.place(total)

        return arrive

    def _meet(self) -> Callable[[], None]:
        return finisher(dist.barrier(group=self.world.group, async_op=True))

    def _slice(self, rank: int, size: int) -> slice:
        width = whole_lines(-(-size // self.world.size))
        return slice(min(rank * width, size), min((rank + 1) * width, size))


def whole_lines(numbers: int) -> int:
    """The next multiple of a line."""
    return -(-numbers // LINE) * LINE


def shared_rows(world: World, size: int) -> Tensor:
    """A row for each process, seen by all of them.  float32 [N, at least `size`]

    It has no name in the file system: whatever ends the processes, it ends with them.
    Raises UserError when there is too little memory.
    """
    width = whole_lines(size)
    bytes_needed = world.size * width * torch.float32.itemsize
    handle = os.memfd_create("gradients") if world.is_first else None
    try:
        with world.together():
            if handle is not None:
                reserve(handle, bytes_needed)  # too little memory is an error here, not a crash later
        path = world.tell(path_of(handle))
        rows = torch.from_file(path, shared=True, size=world.size * width, dtype=torch.float32)
        world.wait_for_all()  # whoever has mapped it keeps it
    finally:
        if handle is not None:
            os.close(handle)
    return rows.view(world.size, width)


def reserve(handle: int, size: int) -> None:
    """Make the file `size` bytes long; raises UserError when there is too little memory."""
    try:
        os.posix_fallocate(handle, 0, size)
    except OSError as error:
        raise UserError(
            f"No {size // 2**20} MiB of memory for the gradients of all processes: {error.strerror}.",
            "Take fewer processes, or gradients=bf16, which shares no memory.",
        ) from error


def see_the_same_memory(world: World) -> bool:
    """Whether all processes are on one machine, and can map memory of the first; called by all of them."""
    if world.size == 1 or world.local_size < world.size or world.device.type != "cpu":
        return False
    token = secrets.token_hex(TOKEN_BYTES)
    handle = os.memfd_create("token") if world.is_first and hasattr(os, "memfd_create") else None
    try:
        if handle is not None:
            os.write(handle, token.encode())
        path, expected = world.tell([path_of(handle), token])
        return world.lowest(int(text_at(path) == expected)) == 1
    finally:
        if handle is not None:
            os.close(handle)


def path_of(handle: int | None) -> str:
    """Where other processes find an open file of this one that has no name."""
    return "" if handle is None else f"/proc/{os.getpid()}/fd/{handle}"


def text_at(path: str) -> str:
    """What the file holds; nothing when it can't be read."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""
