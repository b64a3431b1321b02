"""Stored bytes to what a training step takes: mirrored, and in [-1, 1].

On a CPU this is work for the memory more than for the processor, so every piece goes through all of it while it is in
the cache, into memory that is kept.  Threads take pieces as they come: PyTorch's own wait for each other after every
operation, which takes a hundred times as long when another program has one of the cores.

N images, R resolution, C channels.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.data.format.levels import Images

Floats = NDArray[np.float32]

PIECE = 2**15  # numbers that stay in the cache: 32 KiB of bytes, 128 KiB of floats
PIECES_PER_TASK = 8
HALF_RANGE, ONE = np.float32(127.5), np.float32(1)


def to_float(images: Tensor) -> Tensor:
    """uint8 [N, R, R, C] to float32 [N, C, R, R] in [-1, 1]."""
    return images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1)


def mirrored(images: Tensor, flip: Tensor) -> Tensor:
    """uint8 [N, R, R, C], those flipped left to right where `flip` [N] is true."""
    flipped = images.permute(0, 3, 1, 2).flip(-1).permute(0, 2, 3, 1)  # in this layout PyTorch is four times as fast
    # Chosen as bytes, eight at a time: a quarter of the work it would be as floats.
    chosen = torch.where(flip[:, None], flipped.flatten(1).view(torch.int64), images.flatten(1).view(torch.int64))
    return chosen.view(torch.uint8).view(images.shape)


class FloatMaker:
    """Makes floats of stored images on `device`; on a CPU in the same memory always, in as many threads as PyTorch."""

    def __init__(self, device: torch.device) -> None:
        self._on_cpu = device.type == "cpu"
        self._threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(self._threads, "floats")  # ends with this object
        self._floats = torch.empty(0)

    def make(self, images: Tensor, flip: Tensor | None) -> Tensor:
        """uint8 [N, R, R, C] to float32 [N, C, R, R] in [-1, 1], flipped left to right where `flip` [N] is true.

        On a CPU the result is overwritten by the next call.
        """
        if not self._on_cpu:
            return to_float(images if flip is None else mirrored(images, flip))
        if self._floats.shape != images.shape:
            self._floats = torch.empty(images.shape)
        stored, floats = images.numpy(), self._floats.numpy()
        tasks = list(_tasks(stored, floats, [False] * len(stored) if flip is None else flip.tolist()))
        if self._threads == 1 or len(tasks) == 1:
            for task in tasks:
                _convert(*task)
        else:
            list(self._pool.map(_convert, *zip(*tasks, strict=True)))
        return self._floats.permute(0, 3, 1, 2)


def _tasks(images: Images, floats: Floats, flip: list[bool]) -> Iterator[tuple[Images, Floats, list[bool], int]]:
    """Parts for one thread each: whole images where several make a piece, else rows of one; and the rows of a piece."""
    per_image = images[0].size
    rows = max(1, PIECE * images.shape[1] // per_image)
    if per_image <= PIECE:
        some = PIECES_PER_TASK * PIECE // per_image
        for first in range(0, len(images), some):
            part = slice(first, first + some)
            yield images[part], floats[part], flip[part], rows
        return
    band = PIECES_PER_TASK * rows
    for number in range(len(images)):
        image = slice(number, number + 1)
        for first in range(0, images.shape[1], band):
            part = slice(first, first + band)
            yield images[image, part], floats[image, part], flip[image], rows


def _convert(images: Images, floats: Floats, flip: list[bool], rows: int) -> None:
    """Turn `rows` rows of as many images as make a piece into floats, and then the next."""
    at_once = max(1, rows // images.shape[1])
    for first in range(0, len(images), at_once):
        some = slice(first, first + at_once)
        for top in range(0, images.shape[1], rows):
            piece, out = images[some, top : top + rows], floats[some, top : top + rows]
            if any(flip[some]):
                piece = _flipped(piece, flip[some])
            # As PyTorch rounds it: dividing, then subtracting.
            np.copyto(out, piece)
            np.divide(out, HALF_RANGE, out=out)
            np.subtract(out, ONE, out=out)


def _flipped(images: Images, flip: list[bool]) -> Images:
    """Those flipped left to right where `flip` says so."""
    flipped = np.empty_like(images)
    for channel in range(images.shape[3]):  # one at a time, or numpy's inner loop is three pixels long
        flipped[:, :, :, channel] = images[:, :, ::-1, channel]
    if not all(flip):
        kept = np.logical_not(flip)
        flipped[kept] = images[kept]
    return flipped
