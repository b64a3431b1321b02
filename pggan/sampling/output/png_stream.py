"""A PNG file written row by row, so that a picture of any size takes the memory of a few rows.

Source: PNG specification, third edition (W3C 2025).
"""

import struct
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from pggan.core.atomic_io import atomic_write
from pggan.sampling.output.images import Pixels

SIGNATURE = b"\x89PNG\r\n\x1a\n"
COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # by channels: grey, RGB, RGBA
UP = 2  # the filter: each byte is stored as its difference to the one above, which suits enlarged pixels


@contextmanager
def png_stream(path: Path, width: int, height: int, channels: int) -> Iterator[Callable[[Pixels], None]]:
    """Yield a function that appends rows uint8 [H, `width`, C] of a picture; `path` appears when the block ends.

    Of channels other than 1, 3 or 4, the first is written, as grey.
    """
    written = channels if channels in COLOR_TYPES else 1
    above = np.zeros((1, width * written), np.uint8)
    compressor = zlib.compressobj()
    with atomic_write(path) as temporary, temporary.open("wb") as file:

        def chunk(kind: bytes, content: bytes) -> None:
            checksum = zlib.crc32(content, zlib.crc32(kind))
            file.write(struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum))

        def append(rows: Pixels) -> None:
            nonlocal above
            flat = np.ascontiguousarray(rows[:, :, :written]).reshape(len(rows), -1)
            filtered = flat - np.concatenate([above, flat[:-1]])  # modulo 256
            above = flat[-1:]
            chunk(b"IDAT", compressor.compress(np.pad(filtered, [(0, 0), (1, 0)], constant_values=UP).tobytes()))

        file.write(SIGNATURE)
        chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, COLOR_TYPES[written], 0, 0, 0))
        yield append
        chunk(b"IDAT", compressor.flush())
        chunk(b"IEND", b"")
