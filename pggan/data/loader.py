"""Stored images to the device: levels that fit are kept there as bytes, the others are read ahead by a thread.

N images asked for, R resolution, C channels.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.core.devices import free_memory
from pggan.data.pyramid import ImagePyramid

MIB = 2**20
CPU_BUDGET_BYTES = 1024 * MIB
GPU_BUDGET_SHARE = 0.25  # of the memory that is free before training starts
PIECE_BYTES = 64 * MIB  # of a level on its way to a GPU, so that host memory stays flat


class Request(NamedTuple):
    """The images `indices` (int64 [N]) of level `resolution`."""

    resolution: int
    indices: NDArray[np.int64]


class Loaded(NamedTuple):
    """Images on the device, complete after the event, on a GPU."""

    images: Tensor
    done: torch.cuda.Event | None


def budget_bytes(device: torch.device, processes: int = 1) -> int:
    """How many bytes of levels may be kept on `device`: a quarter of a GPU's free memory, or 1 GiB on a CPU.

    The latter is for all `processes` of the machine together, each of which keeps a level of its own.
    """
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
        self._ahead: tuple[Request, Future[Loaded]] | None = None
        # The thread ends with this object, or with the process, and uses this thread's CUDA device.
        on_gpu = device.type == "cuda"
        use_device = partial(torch.cuda.set_device, torch.cuda.current_device()) if on_gpu else None
        self._reader = ThreadPoolExecutor(1, "read-ahead", use_device)
        self._stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]

    def fits(self, resolution: int) -> bool:
        """Whether a level is kept on the device."""
        return self.pyramid.level_bytes(resolution) <= self.budget

    def get(self, request: Request) -> Tensor:
        """The images asked for."""
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
            ahead = request, self._reader.submit(self._load, request)  # after what is being read for nothing
        images, done = ahead[1].result()
        if done is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(done)
            images.record_stream(current)  # or its memory could be given away while the step still reads it
        return images

    def prefetch(self, request: Request) -> None:
        """Begin to load what will be asked for next."""
        self._ahead = request, self._reader.submit(self._load, request)

    def _level(self, resolution: int) -> Tensor:
        """All images of a level on the device."""
        if self._resident is None or self._resident[0] != resolution:
            self._resident = None  # before the next one takes its memory
            shape, count = (resolution, resolution, self.pyramid.channels), self.pyramid.images
            level = torch.empty((count, *shape), dtype=torch.uint8, device=self.device)
            most = max(PIECE_BYTES // prod(shape), 1)
            for first in range(0, count, most):
                indices = np.arange(first, min(first + most, count))
                level[first : first + most] = torch.from_numpy(self.pyramid.read(resolution, indices))
            self._resident = resolution, level
        return self._resident[1]

    def _load(self, request: Request) -> Loaded:
        """Read images and copy them to the device; runs in the reading thread."""
        if self._stream is None:
            return Loaded(torch.from_numpy(self.pyramid.read(*request)).to(self.device), None)
        shape = (len(request.indices), request.resolution, request.resolution, self.pyramid.channels)
        # A GPU copies from pinned memory while this process goes on; PyTorch keeps that memory for the next batch.
        images = torch.empty(shape, dtype=torch.uint8, pin_memory=True)
        self.pyramid.read(*request, out=images.numpy())
        with torch.cuda.stream(self._stream):
            return Loaded(images.to(self.device, non_blocking=True), self._stream.record_event())
