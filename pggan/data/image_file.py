"""Convert image files to square uint8 images in sRGB, or report why a file can't be used.

Pictures are turned upright as their EXIF or XMP data says.  Transparent pixels are drawn on white, unless the dataset
has an alpha channel.  Pictures are scaled down, never enlarged: by block averages if the side of the picture is a
multiple of the resolution, else with a Lanczos filter.
"""

import re
import struct
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from xml.etree import ElementTree
from zlib import crc32, decompressobj

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageCms, UnidentifiedImageError
from PIL import ImageFile as pillow_file

from pggan.data.writer import block_mean

Pixels = NDArray[np.uint8]  # [H, W, C]

FORMATS = ("PNG", "JPEG", "WEBP", "AVIF")
EXTENSIONS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".avif": "AVIF", ".apng": "PNG"}
EXTENSIONS |= dict.fromkeys((".jpe", ".jfif", ".jfi", ".jif", ".pjpeg", ".pjp", ".mpo"), "JPEG")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
PIXEL_LIMIT = 64_000_000
BOMB_PIXELS = 16_000_000  # images with at most this many pixels are never refused as decompression bombs
BOMB_RATIO = 100  # larger images are refused above 100 pixels per byte of the file; photographs have under 10
ORIENTATION_TAG, TIFF = 0x0112, "http://ns.adobe.com/tiff/1.0/"  # the orientation tag in EXIF, and its namespace in XMP
HIDDEN = ("exif", "APP1", "xmp")  # names by which ImageMagick stores EXIF and XMP data as hexadecimal text in PNG files
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
TURN = {number: Image.Transpose[name] for number, name in enumerate(TURNS, 2)}  # the keys are EXIF orientations
CONVERT = "convert it to PNG or JPEG"
# Each key is a regular expression for the first bytes of a file.  The value names the file type, and what to do.
KINDS = {
    rb"version https://git-lfs": "a Git LFS pointer file: run `git lfs pull`",
    rb"....ftyp(hei|hev|mif1|msf1)": f"HEIC: {CONVERT}",
    rb"....ftypavi": f"AVIF that can't be read: {CONVERT}",
    rb"....ftyp(?!crx)|\x1a\x45\xdf\xa3|RIFF....AVI": "a video: export its frames as PNG",
    rb"\0\0\0\x0cJXL|\xff\x0a": f"JPEG XL: {CONVERT}",
    rb"\xff\xd8\xff": f"a damaged JPEG file, or a rare kind of JPEG, such as 12 bits: {CONVERT}",
    rb"%PDF": "PDF: export its pages as PNG",
    rb".{,40}/annex/objects/": "a git-annex pointer file: run `git annex get`",
    rb"II[*+U\x1a]\0|IIR[OS]|MM\0[*+]|FUJIFILMCCD|FOVb|\0MRM|....ftypcrx": f"TIFF or a camera's raw file: {CONVERT}",
    rb"\x93NUMPY": "a NumPy array: save it as PNG",
    rb"\x1f\x8b|7z|Rar!|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd": "a compressed file: unpack it",
    rb"(\xef\xbb\xbf)?\s*(<\?xml.{,40}\?>\s*)?<(svg|!DOCTYPE svg)": f"SVG: {CONVERT}",
    rb"(\xef\xbb\xbf)?(\s*<|[\t\n\r -~]+\Z)": "a web page or other text: download the file again",
}
# {Pillow's raw mode: function that scales the transparent colour (tRNS) of a PNG file from 2, 4 or 16 bits to 8}
KEY_IN_8_BITS: dict[str, Callable[[Any], Any]] = {
    "L;2": lambda grey: 85 * grey,
    "L;4": lambda grey: 17 * grey,
    "RGB;16B": lambda colour: tuple(value >> 8 for value in colour),
}
PNG_SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # {colour type: samples per pixel}, from the PNG specification
# A PNG file stores pixels in 1 pass, or 7 if interlaced.  A pass is (first column, first row, column step, row step).
PNG_PASSES = (
    [(0, 0, 1, 1)],
    [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)],
)
PNG_METADATA = re.compile(rb"[a-z](?!LTE|RNS)")  # PNG chunks with these names do not change pixels
MARKER = re.compile(rb"\xff+([\x02-\xcf\xd9-\xfe])")  # matches a JPEG marker: of a segment, or of the end (EOI)


class BadImage(Exception):
    """A file can't be used as an image; the message says why."""


class ImageFile(NamedTuple):
    """An image file on disk or in an archive, or an avatar that `open` draws."""

    path: Path  # shown in error messages
    open: Callable[[], BinaryIO]  # has to be picklable, for worker processes


class ImageHeader(NamedTuple):
    """The size of an image as stored, without the rotation in its EXIF data, and whether the image is grey."""

    width: int
    height: int
    is_grey: bool


def read_header(file: ImageFile) -> ImageHeader:
    """Read the header of an image file without decoding pixels; raises BadImage if the file can't be used."""
    with _opened(file) as (image, _):
        return ImageHeader(*image.size, Image.getmodebase(image.mode) == "L")


def decode(file: ImageFile, channels: int, least_side: int = 0) -> tuple[Pixels, list[str]]:
    """Decode an image file; returns upright pixels [H, W, C] and remarks such as "transparency", or raises BadImage.

    If `least_side` is not 0, a JPEG file may be decoded at a reduced size with sides of at least `least_side` pixels.
    """
    with _opened(file) as (image, stream):
        stream.seek(0)
        content, mode = stream.read(), image.mode
        kind = "JPEG" if image.format == "MPO" else str(image.format)
        stored = "".join(str(tile[3]) for tile in getattr(image, "tile", ()))  # Pillow calls 4-bit grey pixels L;4
        pixels, is_odd = _jpeg_pixels(content, mode, least_side) if kind == "JPEG" else (None, False)
        if pixels is None:
            is_odd |= kind == "PNG" and _has_wrong_checksums(content)
            image.load()  # EXIF data may follow the pixels in a PNG file, so pixels are decoded first
            if stored in KEY_IN_8_BITS and "transparency" in image.info:
                image.info["transparency"] = KEY_IN_8_BITS[stored](image.info["transparency"])
        orientation, transform, has_bad_profile = _orientation(image.info), None, False
        if profile := image.info.get("icc_profile"):
            try:
                base = "L" if Image.getmodebase(mode) == "L" else "RGB"
                transform = _transform(profile, mode if mode == "CMYK" else base)
            except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
                has_bad_profile = True
        notes = {
            f"the extension does not fit the format, {kind}": EXTENSIONS.get(file.path.suffix.lower(), kind) != kind,
            f"a faulty {kind} file with intact pixels": is_odd,
            "16 bits, scaled to 8": mode.startswith("I") or ";16" in stored,
            "CMYK, converted to RGB": mode == "CMYK",
            "a palette, converted": mode in ("P", "PA"),
            "transparency": image.has_transparency_data,
            "turned upright as its EXIF data says": orientation in TURN,
            "an EXIF orientation that can't be read": orientation not in (1, *TURN),
            "a colour profile, converted to sRGB": transform is not None,
            "a colour profile that can't be used": has_bad_profile,
            "a gamma other than sRGB's, ignored": abs(image.info.get("gamma", 0.45) - 0.45) > 0.05,
        }
        if pixels is None or orientation in TURN or transform is not None or image.mode != MODES[channels]:
            decoded = image if pixels is None else Image.frombytes(mode, pixels.shape[1::-1], pixels)
            pixels = _converted(decoded, TURN.get(orientation), transform, channels)
        return pixels, [text for text, holds in notes.items() if holds]


@contextmanager
def _opened(file: ImageFile) -> Iterator[tuple[Image.Image, BinaryIO]]:
    """Open an image file; any error, also in the `with` block, becomes a BadImage."""
    try:
        with file.open() as stream, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides warnings about EXIF data and large images; code below checks sizes
            if (size := stream.seek(0, 2)) == 0:
                raise BadImage("empty file")
            pillow_file.LOAD_TRUNCATED_IMAGES = True  # this makes Pillow accept wrong checksums of PNG metadata
            try:
                image = Image.open(stream, formats=FORMATS)
            except UnidentifiedImageError as error:
                kind = kind_of(stream)
                what = "or its header is damaged" if kind is None else f"but {kind}"
                raise BadImage(f"not a PNG, JPEG, WebP or AVIF image, {what}") from error
            finally:
                pillow_file.LOAD_TRUNCATED_IMAGES = False
            with image:
                if (pixels := image.width * image.height) > PIXEL_LIMIT:
                    raise BadImage(f"more than {PIXEL_LIMIT // 10**6} megapixels: {image.width}x{image.height}")
                if pixels > BOMB_PIXELS and pixels > BOMB_RATIO * size:
                    raise BadImage(f"a decompression bomb: {image.width}x{image.height} pixels in {size:,} bytes")
                # An MPO file of a phone has several frames; the first frame is the photograph.
                if getattr(image, "is_animated", False) and image.format != "MPO":
                    raise BadImage("animated")
                yield image, stream
    except BadImage:
        raise
    except Image.DecompressionBombError as error:
        raise BadImage(f"more than {PIXEL_LIMIT // 10**6} megapixels") from error
    except Exception as error:  # decoders may raise any type of error for a damaged file
        problem = str(error) or type(error).__name__  # Pillow raises some errors without a text
        raise BadImage(getattr(error, "strerror", None) or f"damaged: {problem}") from error


def _has_wrong_checksums(content: bytes) -> bool:
    """Return whether PNG metadata have wrong checksums; raises BadImage if pixels are damaged or missing."""
    place, is_odd, parts = 8, False, list[bytes]()
    while (name := content[place + 4 : place + 8]) not in (b"", b"IEND"):
        start, place = place + 4, place + 12 + int.from_bytes(content[place : place + 4])
        if place > len(content):
            return is_odd  # Pillow reports truncated files
        if crc32(content[start : place - 4]) != int.from_bytes(content[place - 4 : place]):
            if not PNG_METADATA.match(name):
                raise BadImage(f"damaged: wrong checksum of {name.decode('ascii', 'replace')}")
            is_odd = True
        if name == b"IDAT":
            parts.append(content[start + 4 : place - 4])
    width, height, bits, colours, interlaced = struct.unpack(">IIBBxxB", content[16:29])
    bits *= PNG_SAMPLES[colours]
    decoder, rows, count = decompressobj(), b"".join(parts), 0
    while rows and not decoder.eof:
        count += len(decoder.decompress(rows, 2**20))  # raises zlib.error if the checksum of the pixels is wrong
        rows = decoder.unconsumed_tail
    sizes = [(-(-(width - x) // dx), -(-(height - y) // dy)) for x, y, dx, dy in PNG_PASSES[interlaced]]
    if count < sum(lines * (1 + -(-columns * bits // 8)) for columns, lines in sizes if columns > 0):
        raise BadImage("damaged: rows of pixels are missing")
    return is_odd


def _jpeg_pixels(content: bytes, mode: str, least_side: int) -> tuple[Pixels | None, bool]:
    """Decode a JPEG file; raises BadImage for damaged parts, which Pillow would fill with grey.

    Returns the pixels (None if only Pillow can decode the file), and whether the file had harmless faults.
    """
    colours = "GRAY" if mode == "L" else mode
    decoded = partial(simplejpeg.decode_jpeg, colorspace=colours, min_height=least_side, min_width=least_side)
    try:
        pixels, is_odd = decoded(content), False
    except ValueError:
        try:
            pixels, is_odd = decoded(_mended_jpeg(content, mode)), True
        except ValueError as error:
            if "subsampling level" in str(error):
                return None, False
            raise BadImage(f"damaged: {error}") from error
    return (255 - pixels if mode == "CMYK" else pixels), is_odd  # JPEG files store CMYK colours inverted


def _mended_jpeg(content: bytes, mode: str) -> bytes:
    """Remove harmless JPEG faults.  libjpeg reports only the first fault, even if a later fault is serious."""
    # JFIF version and colour transform are made valid.  Metadata, stray bytes and zeros after pixels are removed.
    parts, place, missing = [content[:2]], 2, {(0, 0)}  # `missing`: (channel, number) of incomplete DCT coefficients
    transform, strays = b"\2" if mode == "CMYK" else b"\1", list[bytes]()  # libjpeg's default colour transform
    tables, used = set[int](), set[int]()  # numbers of Huffman tables; libjpeg may replace a missing table by another
    while (found := MARKER.search(content, place)) and found[1] != b"\xd9":
        strays.append(content[place : found.start()])
        place = found.end() + int.from_bytes(content[found.end() : found.end() + 2])
        segment = b"\xff" + found[1] + content[found.end() : place]
        if found[1] not in b"\xe1\xe2\xe3\xe4\xe5\xe6\xe7\xe8\xe9\xea\xeb\xec\xed\xef\xfe":
            segment = re.sub(rb"(?<=^\xff\xe0..JFIF\0).", b"\1", segment, flags=re.DOTALL)
            parts.append(re.sub(rb"(?<=^\xff\xee..Adobe.{6})[^\0]", transform, segment, flags=re.DOTALL))
        if found[1] in b"\xc0\xc1\xc2":  # these segments (SOF0 to SOF2) start a Huffman-coded image
            missing = {(component, number) for component in segment[10::3] for number in range(64)}
        while found[1] == b"\xc4" and len(segment) > 20:  # a DHT segment holds tables: number, 16 counts, symbols
            tables.add(segment[4])
            segment = segment[:4] + segment[21 + sum(segment[5:21]) :]
        if found[1] == b"\xda":  # in a JPEG file, pixels follow each segment of this kind (SOS)
            first, last, bits = segment[-3:]
            used |= {one >> 4 for one in segment[6:-3:2] if bits < 16 and first == 0}
            used |= {16 + one % 16 for one in segment[6:-3:2] if last > 0}
            if bits & 15 == 0:  # this scan has the lowest bits, so its DCT coefficients are complete
                missing -= {(name, number) for name in segment[5:-3:2] for number in range(first, last + 1)}
            after = MARKER.search(content, place)
            end = after.start() if after else len(content)
            pixels, place = content[place:end].rstrip(b"\0"), end
            parts.append(pixels + b"\0" * pixels.endswith(b"\xff"))  # in JPEG pixel data, a byte ff is stored as ff 00
    strays.append(content[place : found.start() if found else None])
    # If a marker is lost, stray bytes may be pixels or a table.  A table begins with its own size, at least 19 bytes.
    sizes = (int.from_bytes(one[at : at + 2]) == len(one) - at for one in strays for at in range(len(one) - 18))
    if any(sizes) or not used <= tables or (missing and b"".join(strays).strip(b"\0\xff")):
        return content
    # A missing end marker is added if all DCT coefficients are complete.  libjpeg still reports a last scan cut short.
    return b"".join([*parts, b"\xff\xd9" * (found is not None or not missing)])


def _orientation(info: dict[Any, Any]) -> Any:
    """Return the orientation (1 to 8) in EXIF or else XMP data: 1 without such data, None if the data can't be read."""
    try:
        lines = (info.get(f"Raw profile type {name}", "").split("\n", 3) for name in HIDDEN)
        exif, app1, xmp = (bytes.fromhex(parts[-1]) for parts in lines)
        found = Image.Exif()
        found.load(info.get("exif") or exif or app1)
        if ORIENTATION_TAG in found:
            return found[ORIENTATION_TAG]
        text = info.get("xmp", xmp).replace(b"\0", b"").decode("latin-1")  # it may be UTF-16
        # XML entities could fill the memory.  They can't be defined in an element, so the text is put into an element.
        root = ElementTree.fromstring(f'<_ xmlns:tiff="{TIFF}">{re.sub("<[?]xml .*?[?]>", "", text)}</_>')  # noqa: S314
        tag = f"{{{TIFF}}}Orientation"
        values = (one.get(tag, one.text) for one in root.iter() if tag in (one.tag, *one.keys()))
        return int(next(values, None) or 1)
    except Exception:  # damaged data raise nearly every type of error
        return None


@lru_cache(maxsize=16)  # cached, because a camera writes the same profile into all files
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the transform from a colour profile to sRGB; None if no 8-bit value would change by more than 1."""
    given, wanted = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    if mode == "L" and given.profile.xcolor_space == "RGB ":
        mode = "RGB"
    transform = ImageCms.ImageCmsTransform(given, wanted, mode, "RGB")
    levels = np.mgrid[0:256:15, 0:256:15, 0:256:15].reshape(3, 18, -1).transpose(1, 2, 0).astype(np.uint8)
    colours = Image.fromarray(levels).convert(mode)
    difference = ImageChops.difference(transform.apply(colours), colours.convert("RGB"))
    return None if np.asarray(difference).max() <= 1 else transform


def _converted(
    image: Image.Image, turn: Image.Transpose | None, transform: ImageCms.ImageCmsTransform | None, channels: int
) -> Pixels:
    if turn is not None:
        image = image.transpose(turn)
    if image.mode.startswith("I"):
        sixteen_bits = np.asarray(image).astype(np.uint32)
        key = image.info.get("transparency")
        image = Image.fromarray(((sixteen_bits + 128) // 257).astype(np.uint8))  # 65535 (white) becomes 255
        if key is not None:
            image.putalpha(Image.fromarray(sixteen_bits != key))
    if transform is not None:
        alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
        image = transform.apply(image if image.mode == "CMYK" else image.convert(transform.input_mode))
        if alpha is not None:
            image.putalpha(alpha)
    if image.has_transparency_data and channels != 4:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return to_pixels(image.convert(MODES[channels]))


def load_image(file: ImageFile, resolution: int, channels: int, crop: str) -> tuple[Pixels, list[str]]:
    """Load an image file; returns pixels [resolution, resolution, C] and remarks on the conversion, or raises BadImage.

    crop=center keeps the middle of the image, crop=resize squashes the image, and crop=pad adds white borders.
    """
    pixels, notes = decode(file, channels)
    height, width, _ = pixels.shape
    if usable_side(width, height, crop) < resolution:
        raise BadImage(f"smaller than {resolution}x{resolution}")
    notes += ["not square"] * (height != width)
    if crop == "center":
        pixels = _middle(pixels, min(height, width), min(height, width))
    elif crop == "pad" and height != width:
        photo, side = pixels, max(height, width)
        if side**2 > 4 * PIXEL_LIMIT:
            raise BadImage(f"too long and thin: {side}x{side} pixels with white borders")
        pixels = np.full((side, side, channels), 255, np.uint8)
        _middle(pixels, height, width)[:] = photo
    if pixels.shape[0] % resolution or pixels.shape[1] % resolution:
        image = to_pil(np.ascontiguousarray(pixels))
        return to_pixels(image.resize((resolution, resolution), Image.Resampling.LANCZOS)), notes
    return block_mean(pixels, resolution), notes


def usable_side(width: int, height: int, crop: str) -> int:
    """Compute the largest resolution that `load_image` accepts for images of this size; no image is enlarged."""
    return max(width, height) if crop == "pad" else min(width, height)


def _middle(pixels: Pixels, height: int, width: int) -> Pixels:
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def kind_of(stream: BinaryIO) -> str | None:
    """Name the kind of a file that can't be read, and what to do with the file; None if the kind is unknown."""
    start = stream.read(stream.seek(0) + 64)
    with suppress(Exception):  # Pillow may raise any type of error if the file is not an image
        return f"{Image.open(stream).format}: {CONVERT}"
    return next((text for begin, text in KINDS.items() if re.match(begin, start, re.DOTALL)), None)


def to_pil(pixels: Pixels) -> Image.Image:
    """Convert an array [H, W, C] to a Pillow image."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def to_pixels(image: Image.Image) -> Pixels:
    """Convert a Pillow image to an array [H, W, C]."""
    return np.asarray(image).reshape(image.height, image.width, -1)
