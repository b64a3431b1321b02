"""Animated WebP files, written frame by frame.

Source: WebP Container Specification (Google, 2025), extended file format.
"""

import struct
from io import BytesIO
from pathlib import Path

import numpy as np

from pggan.core.errors import UserError
from pggan.sampling.output.film import Film
from pggan.sampling.output.images import Pixels, to_pil

HEADER_BYTES = 12  # of a file: RIFF, its size, WEBP
MAX_BYTES = 2**32 - 2  # of a file: its size has 32 bits
ANIMATION, ALPHA = 0x02, 0x10  # what a file has
REPLACE = 0x02  # how a frame is drawn: in place of the pixels there, not blended with them


def write_webp(film: Film, path: Path) -> None:
    """Write `film` losslessly: of each frame the rectangle that has changed; raises UserError beyond 4 GiB."""
    shown = None
    with path.open("wb") as file:
        for frame, duration in zip(film.frames(), film.durations(1000), strict=True):
            if shown is None:
                file.write(_beginning(frame))
            top, bottom, left, right = _changed(frame, shown)
            place = (left // 2, top // 2, right - left - 1, bottom - top - 1, duration)
            about = b"".join(map(_uint24, place)) + bytes([REPLACE])
            file.write(_chunk(b"ANMF", about + _encoded(frame[top:bottom, left:right])))
            shown = frame
            if file.tell() > MAX_BYTES:
                raise UserError(f"{path.name} has more than the 4 GiB of a .webp.", "Set out=….mp4, or fewer frames.")
        size = file.tell() - 8  # without RIFF and itself
        file.seek(4)
        file.write(struct.pack("<I", size))


def _beginning(frame: Pixels) -> bytes:
    """The parts before the first frame: the size of the pictures, and that they are shown again and again."""
    height, width, channels = frame.shape
    has = ANIMATION | (ALPHA if channels == 4 else 0)
    about = bytes([has, 0, 0, 0]) + _uint24(width - 1) + _uint24(height - 1)
    return b"RIFF\0\0\0\0WEBP" + _chunk(b"VP8X", about) + _chunk(b"ANIM", bytes(6))


def _changed(frame: Pixels, shown: Pixels | None) -> tuple[int, int, int, int]:
    """Top, bottom, left and right of what differs from the frame before; top and left are even, as places are."""
    if shown is None:
        return 0, frame.shape[0], 0, frame.shape[1]
    changed = (frame != shown).any(2)
    rows, columns = (np.flatnonzero(changed.any(axis)).tolist() or [0] for axis in (1, 0))  # at least one pixel
    return rows[0] // 2 * 2, rows[-1] + 1, columns[0] // 2 * 2, columns[-1] + 1


def _encoded(picture: Pixels) -> bytes:
    """The part of a file that holds one picture [H, W, C]."""
    content = BytesIO()
    to_pil(picture).save(content, format="WEBP", lossless=True, method=0)  # 4: half the bytes, 5 to 9 times the time
    return content.getvalue()[HEADER_BYTES:]


def _chunk(kind: bytes, content: bytes) -> bytes:
    return kind + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)


def _uint24(number: int) -> bytes:
    return number.to_bytes(3, "little")
