"""Stored images to the device: levels that fit are kept there as bytes, the others are read ahead by a thread.

N images asked for, R resolution, C channels.
"""

from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.core.devices import free_memory
from pggan.data.levels import Images
from pggan.data.pyramid import ImagePyramid

MIB = 2**20
CPU_BUDGET_BYTES = 1024 * MIB
READERS = 4
MIN_BYTES_PER_READER = 2 * MIB
GPU_BUDGET_SHARE = 0.25  # of the memory that is free before training starts
PIECE_BYTES = 64 * MIB  # of a level on its way to a GPU: many times what starting a copy costs


class Request(NamedTuple):
    """The images `indices` (int64 [N]) of level `resolution`."""

    resolution: int
    indices: NDArray[np.int64]


class Transfer(NamedTuple):
    """One end of a copy of images to the device, and the event after which the copy is complete, on a GPU."""

    images: Tensor
    done: torch.cuda.Event | None


def budget_bytes(budget_mib: int | None, device: torch.device, processes: int = 1) -> int:
    """How many bytes of levels may be kept on `device`; None: a quarter of a GPU's free memory, or 1 GiB on a CPU.

    The latter is for all `processes` of the machine together, each of which keeps a level of its own.
    """
    if budget_mib is not None:
        return budget_mib * MIB
    free = free_memory(device) if device.type == "cuda" else None
    return CPU_BUDGET_BYTES // processes if free is None else int(GPU_BUDGET_SHARE * free)


class Loader:
    """Images of a pyramid as uint8 [N, R, R, C] on `device`.  What it gives depends on the request alone."""

    def __init__(self, pyramid: ImagePyramid, device: torch.device, budget: int) -> None:
        """Args: budget: bytes of levels that may be kept on the device."""
        self.pyramid = pyramid
        self.device = device
        self.budget = budget
        self._resident: tuple[int, Tensor] | None = None
        # Threads end with this object, or with the process.  The one that copies uses this thread's CUDA device.
        on_gpu = device.type == "cuda"
        use_device = partial(torch.cuda.set_device, torch.cuda.current_device()) if on_gpu else None
        self._ahead_reader = ThreadPoolExecutor(1, "read-ahead", use_device)
        self._readers = ThreadPoolExecutor(READERS, "read")
        self._ahead: tuple[Request, Future[Transfer]] | None = None
        # Two in turn, kept because new memory costs more than reading into it: one is read into while the images of the
        # other are turned into floats.
        self._buffers: list[Transfer] = []
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def fits(self, resolution: int) -> bool:
        """Whether a level is kept on the device."""
        return self.pyramid.level_bytes(resolution) <= self.budget

    def get(self, request: Request) -> Tensor:
        """The images asked for.  On a CPU their memory is used again by the next call but one."""
        if self.fits(request.resolution):
            try:
                level = self._level(request.resolution)
                return level.index_select(0, torch.from_numpy(request.indices).to(self.device, non_blocking=True))
            except torch.OutOfMemoryError:  # others use the device: from now on, this level is read batch by batch
                self.budget = self.pyramid.level_bytes(request.resolution) - 1
                torch.cuda.empty_cache()
        self._resident = None  # of a level left behind
        ahead, self._ahead = self._ahead, None
        same_level = ahead is not None and ahead[0].resolution == request.resolution
        if ahead is None or not same_level or not np.array_equal(ahead[0].indices, request.indices):
            ahead = request, self._ahead_reader.submit(self._load, request)  # after what is being read for nothing
        loaded = ahead[1].result()
        if loaded.done is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(loaded.done)
            loaded.images.record_stream(current)  # or its memory could be given away while the step still reads it
        return loaded.images

    def prefetch(self, request: Request) -> None:
        """Begin to load what will be asked for next."""
        self._ahead = request, self._ahead_reader.submit(self._load, request)

    def _level(self, resolution: int) -> Tensor:
        if self._resident is None or self._resident[0] != resolution:
            self._resident = None  # before the next one takes its memory
            ahead, self._ahead = self._ahead, None
            if ahead is not None:  # of a level left behind by a rollback; it has the buffers
                wait([ahead[1]])
            self._resident = resolution, self._whole_level(resolution)
        return self._resident[1]

    def _whole_level(self, resolution: int) -> Tensor:
        """All images of a level on the device; on the way to a GPU, host memory holds no more than two pieces of it."""
        shape, count = (resolution, resolution, self.pyramid.channels), self.pyramid.images
        level = torch.empty((count, *shape), dtype=torch.uint8, device=self.device)
        if self.device.type == "cpu":
            self._read(Request(resolution, np.arange(count)), level.numpy())
            return level
        most = min(max(PIECE_BYTES // prod(shape), 1), count)
        for first in range(0, count, most):
            buffer = self._buffer((most, *shape))
            indices = np.arange(first, min(first + most, count))
            piece = buffer[: len(indices)]
            self._read(Request(resolution, indices), piece.numpy())
            # On the stream of the training step, which needs the level complete; meanwhile the next piece is read.
            level[first : first + most].copy_(piece, non_blocking=self._stream is not None)
            done = None if self._stream is None else torch.cuda.current_stream(self.device).record_event()
            self._buffers.append(Transfer(buffer, done))
        self._buffers.clear()
        return level

    def _load(self, request: Request) -> Transfer:
        """Read images and copy them to the device; runs in the reading thread."""
        images = self._buffer((len(request.indices), request.resolution, request.resolution, self.pyramid.channels))
        self._read(request, images.numpy())
        if self._stream is None:
            loaded = Transfer(images.to(self.device), None)
        else:
            with torch.cuda.stream(self._stream):
                loaded = Transfer(images.to(self.device, non_blocking=True), self._stream.record_event())
        self._buffers.append(Transfer(images, loaded.done))
        return loaded

    def _read(self, request: Request, out: Images) -> None:
        """Read in several threads where that is worth it: copies and waits for the disk then overlap."""
        parts = min(READERS, out.nbytes // MIN_BYTES_PER_READER + 1, len(out))
        if parts == 1:
            self.pyramid.read(request.resolution, request.indices, out=out)
            return
        indices, outs = np.array_split(request.indices, parts), np.array_split(out, parts)
        list(self._readers.map(self.pyramid.read, [request.resolution] * parts, indices, outs))

    def _buffer(self, shape: tuple[int, ...]) -> Tensor:
        """The one of two buffers that was used before the last, or a new one where the shape has changed."""
        self._buffers = [buffer for buffer in self._buffers if buffer.images.shape == shape]
        if len(self._buffers) < 2:
            # Pinned memory is what a GPU can copy from asynchronously.
            return torch.empty(shape, dtype=torch.uint8, pin_memory=self._stream is not None)
        oldest = self._buffers.pop(0)
        if oldest.done is not None:
            oldest.done.synchronize()
        return oldest.images
