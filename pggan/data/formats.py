"""What an image file is by its first bytes, and what in a JPEG file is odd but harms no pixel."""

import re

import numpy as np
import simplejpeg
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]  # [H, W, C]

CONVERT = "convert it to PNG or JPEG"
# {first bytes of a file: what kind of file this is, and what to do with it}
KINDS = {
    rb"version https://git-lfs": "a pointer of Git LFS: run `git lfs pull`",
    rb"....ftyp(hei|hev|mif1|msf1)": f"HEIC: {CONVERT}",
    rb"....ftypavi": f"AVIF that can't be read: {CONVERT}",
    rb"\0\0\0\x0cjP|\xff\x4f\xff\x51": f"JPEG 2000: {CONVERT}",
    rb"\0\0\0\x0cJXL|\xff\x0a": f"JPEG XL: {CONVERT}",
    rb"%PDF": "PDF: export its pages as PNG",
    rb"GIF8": f"GIF: {CONVERT}",
    rb"II\*\0|MM\0\*": f"TIFF or a camera's raw file: {CONVERT}",
    rb"\x93NUMPY": "an array of NumPy: save it as PNG",
    rb"\s*<": "a web page or other text: download the file again",
    rb"\x1f\x8b|7z|Rar!|BZh|\xfd7zXZ": "a compressed file: unpack it",
}
MARKER = re.compile(rb"\xff+([\x02-\xcf\xd9-\xfe])")  # the marker of a JPEG segment or of the file's end


class BadImage(Exception):
    """The error for a file that can't be used as an image; the message says why."""


def kind_of(start: bytes) -> str | None:
    """What a file is by its first bytes, and what to do with it; None for unknown kinds and for readable images."""
    return next((text for begin, text in KINDS.items() if re.match(begin, start, re.DOTALL)), None)


def jpeg_pixels(content: bytes, mode: str, least_side: int = 0) -> Pixels | None:
    """The pixels [H, W, C] of a JPEG file of Pillow's `mode`; None if the file is odd, but Pillow can read all pixels.

    A JPEG file that is much larger than `least_side` is decoded at up to an eighth of its size, if that is not 0.
    Raises BadImage for damaged files, where Pillow fills in grey without a word.
    """
    colours = {"L": "GRAY"}.get(mode, mode)
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(content, colours, min_height=least_side, min_width=least_side)
        return pixels
    except ValueError as error:
        try:
            simplejpeg.decode_jpeg(mended_jpeg(content), colours)
        except ValueError as other:
            if "subsampling level" not in str(other):  # a kind of JPEG that only Pillow reads
                raise BadImage(f"damaged: {error}") from error
    return None


def mended_jpeg(content: bytes) -> bytes:
    """Remove from a JPEG file what libjpeg warns of, but no pixel depends on.

    libjpeg warns of unknown versions of JFIF, metadata, bytes between segments, zeros after pixels, and a missing end.
    libjpeg reports only its first warning, so such a warning would hide a warning of missing pixels.
    """
    parts, place = [content[:2]], 2
    while (found := MARKER.search(content, place)) and found[1] != b"\xd9":
        place = found.end() + int.from_bytes(content[found.end() : found.end() + 2])
        segment = b"\xff" + found[1] + content[found.end() : place]
        if found[1] not in b"\xe1\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xeb\xec\xed\xef\xfe":
            parts.append(re.sub(rb"(?<=^\xff\xe0..JFIF\0).", b"\1", segment, flags=re.DOTALL))
        if found[1] == b"\xda":  # the pixels of a scan lie between this segment and the next
            after = MARKER.search(content, place)
            pixels = content[place : after.start() if after else None].rstrip(b"\0")
            parts.append(pixels + b"\0" * pixels.endswith(b"\xff"))  # in pixels, a byte ff is followed by 00
    return b"".join([*parts, b"\xff\xd9"])
