"""Animated PNG files, written frame by frame.

Source: PNG specification, third edition (W3C 2025), section 11.3.
"""

import struct
import zlib
from collections.abc import Iterator
from io import BytesIO
from itertools import count
from pathlib import Path

from pggan.sampling.output.film import Film
from pggan.sampling.output.images import Pixels, to_pil

SIGNATURE_BYTES = 8


def write_apng(film: Film, path: Path) -> None:
    """Write `film`, losslessly, at its exact rate."""
    numbers = count()
    with path.open("wb") as file:
        for frame in film.frames():
            height, width = frame.shape[:2]
            chunks = list(_chunks(frame))
            first = file.tell() == 0
            if first:
                file.write(b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", chunks[0][1]))
                file.write(_chunk(b"acTL", struct.pack(">II", film.count, 0)))  # again and again
            about = struct.pack(">IIIIIHHBB", next(numbers), width, height, 0, 0, 1, film.fps, 0, 0)
            file.write(_chunk(b"fcTL", about))
            for kind, content in chunks:
                if kind == b"IDAT":
                    number = b"" if first else struct.pack(">I", next(numbers))
                    file.write(_chunk(b"IDAT" if first else b"fdAT", number + content))
        file.write(_chunk(b"IEND", b""))


def _chunks(picture: Pixels) -> Iterator[tuple[bytes, bytes]]:
    """Kind and content of each part of a picture [H, W, C] as a PNG file."""
    encoded = BytesIO()
    to_pil(picture).save(encoded, format="PNG")
    content, at = encoded.getbuffer(), SIGNATURE_BYTES
    while at < len(content):
        (length,) = struct.unpack(">I", content[at : at + 4])
        yield bytes(content[at + 4 : at + 8]), bytes(content[at + 8 : at + 8 + length])
        at += length + 12


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
