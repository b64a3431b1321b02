"""Marks pictures and films as drawn by a neural network, in XMP metadata (IPTC's DigitalSourceType).

Sources: IPTC Photo Metadata Standard 2025.1; XMP specification part 3 (storage in files).  Imports no torch.
"""

import re
from html import escape, unescape
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pggan.core.process import __version__

DRAWN, BESIDE = "Drawn by a neural network", "Photographs beside images drawn by a neural network"
MOST_LETTERS = 1000  # Longer descriptions are cut, because a JPEG file holds at most 64 KB of XMP.
PNG_KEY, PNG_HEADER_BYTES = "XML:com.adobe.xmp", 33  # 33 bytes: a PNG file's signature (8) and IHDR chunk (25)
MP4_BOX = b"uuid" + UUID("be7acfcb-97a9-42e8-9c71-999491e3afac").bytes
GIF_TRAILER = bytes([1, *range(255, -1, -1), 0])  # GIF readers without XMP skip a packet that ends in these bytes.
SOURCE_TYPES = "http://cv.iptc.org/newscodes/digitalsourcetype/"
PACKET = f"""<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?><x:xmpmeta xmlns:x="adobe:ns:meta/">
<rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#"><rdf:Description rdf:about=""
 xmlns:dc="http://purl.org/dc/elements/1.1/" xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/"
 Iptc4xmpExt:DigitalSourceType="{SOURCE_TYPES}KIND"><dc:description><rdf:Alt>
<rdf:li xml:lang="x-default">LINE</rdf:li></rdf:Alt></dc:description></rdf:Description></rdf:RDF></x:xmpmeta>
<?xpacket end="w"?>"""


def mark_line(wanted: bool, run: object, what: str, how: str = DRAWN) -> str | None:
    """Return a description that names the program, `run` and `what` (such as the seeds); None if not `wanted`."""
    return f"{how}: pggan {__version__}, run={run}, {what}" if wanted else None


def saving(line: str | None, text: PngInfo | None = None) -> dict[str, Any]:
    """Return arguments for Pillow's `save` that write `line` as XMP metadata and, in a PNG, the text entries `text`."""
    text = text or PngInfo()
    if line is None:
        return {"pnginfo": text}
    text.add_itxt(PNG_KEY, packet(line).decode())
    return {"pnginfo": text, "xmp": packet(line)}


def packet(line: str) -> bytes:
    """Return an XMP packet that marks an image as drawn by a neural network, with the description `line`."""
    kind = "compositeWithTrainedAlgorithmicMedia" if line.startswith(BESIDE) else "trainedAlgorithmicMedia"
    # "?" replaces characters that XML forbids, such as control codes.
    shown = escape(re.sub(r"[^ -~\u00a0-\ud7ff]", "?", line[:MOST_LETTERS]))
    return PACKET.replace("KIND", kind).replace("LINE", shown).encode()


def png_chunk(line: str | None) -> bytes:
    """Return a PNG chunk with the description `line`, for insertion after the chunk IHDR; b"" if `line` is None."""
    file = BytesIO()
    Image.new("L", (1, 1)).save(file, "PNG", **saving(line))
    content = file.getvalue()
    return content[PNG_HEADER_BYTES : content.index(b"IDAT") - 4]


def mark_film(path: Path, kind: str, line: str | None) -> None:
    """Insert the description `line` as XMP metadata into a .gif or .mp4 file, because Pillow and PyAV can't do that."""
    if line is not None and kind == ".mp4":
        with path.open("ab") as file:
            file.write((24 + len(packet(line))).to_bytes(4, "big") + MP4_BOX + packet(line))
    if line is not None and kind == ".gif":
        content = path.read_bytes()
        # The packet follows the header (13 bytes) and the global palette, which exists only if bit 7 of byte 10 is set.
        begin = 13 + (3 << (content[10] % 8 + 1) if content[10] >> 7 else 0)
        path.write_bytes(content[:begin] + b"\x21\xff\x0bXMP DataXMP" + packet(line) + GIF_TRAILER + content[begin:])


def mark_in(path: Path) -> dict[str, str | None]:
    """Return the DigitalSourceType and the description from the XMP metadata of a file; missing values are None."""
    found = re.search(rb"<x:xmpmeta.*?</x:xmpmeta>", path.read_bytes(), re.DOTALL)
    text = found[0].decode("utf-8", "replace") if found else ""
    source = re.search(r"DigitalSourceType\s*(?:=\s*[\"']|>)\s*([^\"'<]+)", text)
    line = re.search(r"<dc:description>.*?<rdf:li[^>]*>([^<]*)", text, re.DOTALL)
    return {
        "digital_source_type": source and source[1].strip().removeprefix(SOURCE_TYPES),
        "description": line and unescape(line[1]),
    }
