"""Stored bytes to what a training step takes: mirrored, and in [-1, 1].

On a CPU this is work for the memory more than for the processor, so every piece goes through all of it while it is in
the cache, into memory that is kept.  Threads take pieces as they come: PyTorch's own wait for each other after every
operation, which takes a hundred times as long when another program has one of the cores.

N images, R resolution, C channels.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.data.format.levels import Images

Floats = NDArray[np.float32]

PIECE = 2**15  # numbers that stay in the cache: 32 KiB of bytes, 128 KiB of floats
MIN_PIECES_PER_THREAD = 4
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
        flips = [False] * len(images) if flip is None else flip.tolist()
        pieces = _pieces(images.shape)
        # The threads share one iterator, so each takes the next piece when it is done with one.
        convert = partial(_convert, iter(pieces), images.numpy(), self._floats.numpy(), flips)
        threads = min(self._threads, len(pieces) // MIN_PIECES_PER_THREAD)
        if threads > 1:
            for done in [self._pool.submit(convert) for _ in range(threads)]:
                done.result()
        else:
            convert()
        return self._floats.permute(0, 3, 1, 2)


def _pieces(shape: tuple[int, ...]) -> list[tuple[slice, slice]]:
    """The images and rows of each piece of a batch [N, R, R, C]: several whole images, or rows of one."""
    count, side, _, channels = shape
    images, rows = max(1, PIECE // (side * side * channels)), min(side, max(1, PIECE // (side * channels)))
    return [
        (slice(first, first + images), slice(top, top + rows))
        for first in range(0, count, images)
        for top in range(0, side, rows)
    ]


def _convert(pieces: Iterator[tuple[slice, slice]], stored: Images, floats: Floats, flips: list[bool]) -> None:
    """Turn one piece after the other into floats, until other threads and this one have taken them all."""
    for images, rows in pieces:
        piece, out = stored[images, rows], floats[images, rows]
        if any(flips[images]):
            piece = _flipped(piece, flips[images])
        # As PyTorch rounds it: dividing, then subtracting.
        np.copyto(out, piece)
        np.divide(out, HALF_RANGE, out=out)
        np.subtract(out, ONE, out=out)


def _flipped(images: Images, flip: list[bool]) -> Images:
    """The images [N, R, R, C], flipped left to right where `flip` is true."""
    flipped = np.empty_like(images)
    for channel in range(images.shape[3]):  # one at a time, or numpy's inner loop is three pixels long
        flipped[:, :, :, channel] = images[:, :, ::-1, channel]
    if not all(flip):
        kept = np.logical_not(flip)
        flipped[kept] = images[kept]
    return flipped
