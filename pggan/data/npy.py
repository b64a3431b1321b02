"""Image files that are NumPy arrays (.npy), as some published sets are: [H, W], [H, W, C] or [C, H, W]."""

import io
from math import prod
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from pggan.data.levels import Images

MAGIC = npy.MAGIC_PREFIX
MAX_BYTES = 64_000_000


class ArrayHeader(NamedTuple):
    """The facts in the header of a .npy file about the image in it."""

    width: int
    height: int
    channels: int
    notes: tuple[str, ...]
    content: BinaryIO


def array_header(content: BinaryIO, size: int) -> ArrayHeader:
    """The header of a .npy file of `size` bytes.  Raises ValueError where it holds no image."""
    version = npy.read_magic(content)
    read = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, _, kind = read(content)
    if kind.hasobject or kind.kind not in "uf" or (kind.kind == "u" and kind.itemsize > 2):
        raise ValueError(f"an array of {kind}, not of bytes, 16-bit numbers or floats")
    if prod(shape) * kind.itemsize > min(size, MAX_BYTES):  # before any memory is set aside for it
        raise ValueError(f"an array of shape {shape} does not fit into {size:,} bytes")
    height, width, channels = _image_shape(shape)
    content.seek(0)
    notes = {"u1": (), "u2": ("16 bits, scaled to 8",)}.get(kind.str[1:], ("floats, scaled to bytes",))
    return ArrayHeader(width, height, channels, notes, content)


def array_pixels(header: ArrayHeader) -> Images:
    """The image of a .npy file as [H, W, C].  Raises ValueError for NaN, infinity and floats outside 0 … 1."""
    array: NDArray[Any] = npy.read_array(header.content)  # no objects: the header has been looked at
    if array.shape[-1] != header.channels and array.shape[-2:] == (header.height, header.width):  # channels first
        array = np.moveaxis(array.reshape(-1, header.height, header.width), 0, 2)
    array = np.ascontiguousarray(array.reshape(header.height, header.width, header.channels))
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            raise ValueError("NaN or infinity among its numbers")
        if array.min() < 0 or array.max() > 1:
            raise ValueError("floats outside 0 … 1")
        return np.floor(array.astype(np.float64) * 255 + 0.5).astype(np.uint8)
    if array.dtype.itemsize == 2:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)  # 65535 = 257 * 255
    return array


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """Height, width and channels of an array of this shape."""
    match shape[1:] if len(shape) == 4 and shape[0] == 1 else shape:
        case (height, width):
            return height, width, 1
        case (height, width, 1 | 3 | 4 as channels) | (1 | 3 | 4 as channels, height, width):
            return height, width, channels
    raise ValueError(f"an array of shape {shape} is no image")


def array_file(pixels: Images) -> BinaryIO:
    """An array as a .npy file in memory."""
    content = io.BytesIO()
    np.save(content, pixels)
    content.seek(0)
    return content
