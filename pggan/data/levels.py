"""From one level to the lower ones: exact box means, rounded half up.

H height, W width, R and r resolutions, C channels.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pggan.core.architecture import MIN_RESOLUTION

Images = NDArray[np.uint8]


def block_sums(image: NDArray[Any], resolution: int) -> NDArray[np.uint32]:
    """The sum of every block of an image [H, W, C], as [r, r, C].  H and W are multiples of `resolution`."""
    height, width, channels = image.shape
    tall, wide = height // resolution, width // resolution
    rows = np.zeros((resolution, width, channels), np.uint32)
    for offset in range(tall):
        rows += image[offset::tall]
    sums = np.zeros((resolution, resolution, channels), np.uint32)
    for channel in range(channels):  # one channel at a time, or numpy's inner loop is three pixels long
        for offset in range(wide):
            sums[:, :, channel] += rows[:, offset::wide, channel]
    return sums


def rounded_mean(sums: NDArray[np.uint32], count: int) -> Images:
    """floor(sums / count + 1/2) in integers: halves go up.  `count` bytes in each sum, < 8 million."""
    return ((2 * sums + count) // (2 * count)).astype(np.uint8)


def block_mean(image: Images, resolution: int) -> Images:
    """The rounded mean of every block of [H, W, C], as [r, r, C].  H and W are multiples of `resolution`."""
    height, width, _ = image.shape
    if height == width == resolution << (height // resolution).bit_length() - 1:
        return _halvings(image, resolution)[-1]
    return rounded_mean(block_sums(image, resolution), (height // resolution) * (width // resolution))


def all_levels(image: Images) -> list[Images]:
    """A top-level image [R, R, C] and its means at R/2, R/4 … 4; each comes exactly from the top level."""
    return _halvings(image, MIN_RESOLUTION)


def _halvings(image: Images, resolution: int) -> list[Images]:
    """An image [R, R, C] and its means at R/2, R/4 … `resolution`."""
    levels = [np.ascontiguousarray(image)]
    sums: NDArray[Any] = image
    bits = 0  # a block holds 2^bits pixels
    while len(sums) > resolution:
        # Sums of 256 bytes and half of that for rounding still fit into 16 bits, which is twice as fast.
        sums = _halved(sums, np.uint16 if bits + 2 <= 8 else np.uint32)
        bits += 2
        levels.append(((sums + sums.dtype.type(1 << (bits - 1))) >> bits).astype(np.uint8))
    return levels


def _halved(sums: NDArray[Any], kind: type[np.uint16 | np.uint32]) -> NDArray[Any]:
    """Sums of 2x2 blocks."""
    side, _, channels = sums.shape
    rows = np.add(sums[0::2], sums[1::2], dtype=kind).reshape(-1, 2 * channels)
    halved = np.empty((len(rows), channels), kind)
    for channel in range(channels):  # one at a time, or numpy's inner loop is three pixels long
        np.add(rows[:, channel], rows[:, channels + channel], out=halved[:, channel])
    return halved.reshape(side // 2, side // 2, channels)
