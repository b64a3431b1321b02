"""One image file to one square array of bytes, by one rule, or the reason why not.

The rule: PNG, JPEG or WebP, whatever the name says; one still picture, neither more than 64 megapixels nor a
decompression bomb; turned upright as its EXIF data says; transparency laid on white, unless the alpha channel is kept;
16 bits scaled to 8; CMYK and palettes to RGB; made square by `crop`; then the mean of each block where the side is a
multiple of the wanted resolution, else a Lanczos filter.  Never enlarged.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from pggan.data.face_crop import Landmarks, align_face, face_side, to_pil, to_pixels
from pggan.data.levels import Images, block_mean

FORMATS = ("PNG", "JPEG", "WEBP")
EXTENSIONS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
PIXEL_LIMIT = 64_000_000
BOMB_PIXELS = 16_000_000  # of 4 bytes: what a decoder may use without being looked at
BOMB_RATIO = 100  # pixels per byte of the file; photographs have less than 10, even badly compressed ones
STRICT_BYTES = 32_000_000  # the strict JPEG decoder takes the whole file at once
UNUSUAL_ASPECT = 4
ORIENTATION_TAG = 0x0112
NOT_AN_IMAGE = "not a PNG, JPEG or WebP image"
HEADERS = (b"\x89PNG\r\n", b"\xff\xd8\xff")
OTHERS = {b"GIF8": "a GIF", b"BM": "a BMP", b"II*\0": "a TIFF", b"MM\0*": "a TIFF", b"<": "a page of text"}
START_BYTES = 6


class BadImage(Exception):
    """A file that cannot be used as an image, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{printable(self.path)}: {self.reason}"


def printable(path: Path) -> str:
    """A path for a terminal: a name may hold codes that it would obey."""
    name = str(path)
    return name if name.isprintable() else ascii(name)


class ImageFile(NamedTuple):
    """An image file wherever it is: `path` names it in messages, `open` gives its bytes.  Picklable."""

    path: Path
    open: Callable[[], BinaryIO]


class ImageHeader(NamedTuple):
    """The facts in the header of an image file: the size of the upright image, its channels, what to note.

    channels: 1 grey, 3 colour, 4 with transparency; notes: what will be converted, in the same words for all files.
    """

    width: int
    height: int
    channels: int
    notes: tuple[str, ...] = ()


class ImageSpec(NamedTuple):
    """The form that every image gets: uint8 [resolution, resolution, channels].

    crop: how it becomes square: center (the middle), resize (squashed), pad (white borders), face (as FFHQ).
    keep: the share of the square's side that stays, around its middle.
    """

    resolution: int
    channels: int
    crop: str
    keep: float = 1.0


def png_file(image: Image.Image) -> BinaryIO:
    """An image that comes from no file as a PNG file in memory."""
    content = BytesIO()
    image.save(content, "PNG", compress_level=0)
    content.seek(0)
    return content


def usable_side(width: int, height: int, crop: str, keep: float, face: Landmarks | None) -> int:
    """How large a resolution an image of this size can serve without being enlarged."""
    if crop == "face":
        return 0 if face is None else int(face_side(face))
    return int((max(width, height) if crop == "pad" else min(width, height)) * keep)


def too_small(resolution: int, crop: str, face: Landmarks | None) -> str:
    """Why an image is refused whose usable side is below `resolution`."""
    if crop == "face" and face is None:
        return "no landmarks in the landmarks file"
    return f"{'a face ' if crop == 'face' else ''}smaller than {resolution}x{resolution}"


def read_header(file: ImageFile) -> ImageHeader:
    """The header of an image file; its pixels are not decoded.  Raises BadImage."""
    with _opened(file) as image:
        # PNG's own getexif would decode all pixels to look for EXIF data behind them.
        turned = Image.Image.getexif(image).get(ORIENTATION_TAG, 1)
        width, height = image.size[::-1] if turned >= 5 else image.size
        grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
        channels = 1 if grey else 4 if image.has_transparency_data else 3
        format_name = "JPEG" if image.format == "MPO" else str(image.format)
        long_side, short_side = max(width, height), min(width, height)
        notes = {
            f"a {format_name} behind another extension": EXTENSIONS.get(file.path.suffix.lower(), format_name)
            != format_name,
            "16 bits, scaled to 8": image.mode.startswith("I")
            or any(";16" in str(tile[3]) for tile in getattr(image, "tile", ())),
            "CMYK, converted to RGB": image.mode == "CMYK",
            "a palette, converted": image.mode in ("P", "PA"),
            "transparency": image.has_transparency_data,
            "turned upright as its EXIF data says": turned != 1,
            f"one side {UNUSUAL_ASPECT} times the other or more": long_side >= UNUSUAL_ASPECT * short_side,
            "not square": short_side < long_side < UNUSUAL_ASPECT * short_side,
        }
    return ImageHeader(width, height, channels, tuple(text for text, holds in notes.items() if holds))


def load_image(file: ImageFile, target: ImageSpec, face: Landmarks | None = None) -> Images:
    """The image in a file as [R, R, C], by the rule of this module; crop=face needs a `face`.  Raises BadImage."""
    with _opened(file) as image:
        pixels = _decoded(image, target.channels)
    height, width, _ = pixels.shape
    resolution = target.resolution
    if usable_side(width, height, target.crop, target.keep, face) < resolution:
        raise BadImage(file.path, too_small(resolution, target.crop, face))
    if target.crop == "face" and face is not None:
        try:
            return align_face(pixels, face, resolution)
        except ValueError as error:
            raise BadImage(file.path, str(error)) from error
    square = _make_square(pixels, target.crop)
    square = _middle(square, *(int(side * target.keep) for side in square.shape[:2]))
    if square.shape[0] % resolution or square.shape[1] % resolution:
        image = to_pil(np.ascontiguousarray(square))
        return to_pixels(image.resize((resolution, resolution), Image.Resampling.LANCZOS))
    return block_mean(square, resolution)


@contextmanager
def _opened(file: ImageFile) -> Iterator[Image.Image]:
    """The image of a file; whatever is wrong with it, here or inside the `with` block, becomes a BadImage."""
    path, start = file.path, b""
    try:
        with file.open() as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images (our own limit is below) and of odd EXIF data
            size = content.seek(0, 2)
            content.seek(0)
            start = content.read(START_BYTES)
            content.seek(0)
            if size == 0:
                raise BadImage(path, "empty file")
            with Image.open(content, formats=FORMATS) as image:
                _check_header(path, image, size)
                yield image
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        if start.startswith(HEADERS):
            raise BadImage(path, "damaged: its header makes no sense") from error
        found = next((f", but {name}" for signature, name in OTHERS.items() if start.startswith(signature)), "")
        raise BadImage(path, NOT_AN_IMAGE + found) from error
    except Image.DecompressionBombError as error:
        raise BadImage(path, f"more than {PIXEL_LIMIT // 10**6} megapixels") from error
    except OSError as error:
        raise BadImage(path, error.strerror or f"damaged: {error}") from error
    except Exception as error:  # decoders raise nearly every type for damaged files
        raise BadImage(path, f"damaged: {error}") from error


def _check_header(path: Path, image: Image.Image, size: int) -> None:
    pixels = image.width * image.height
    if pixels > PIXEL_LIMIT:
        raise BadImage(path, f"more than {PIXEL_LIMIT // 10**6} megapixels: {image.width}x{image.height}")
    if pixels > BOMB_PIXELS and pixels > BOMB_RATIO * size:
        raise BadImage(path, f"a decompression bomb: {image.width}x{image.height} pixels in {size:,} bytes")
    # A JPEG with a second view behind it (MPO, of telephones) is no animation: its first frame is the photo.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise BadImage(path, "animated")


# ---- pixels


def _decoded(image: Image.Image, channels: int) -> Images:
    """The upright pixels of an opened file as [H, W, C]."""
    content: BinaryIO = image.fp  # type: ignore[attr-defined]
    jpeg = image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB")
    if jpeg and content.seek(0, 2) <= STRICT_BYTES:
        content.seek(0)
        # The same pixels as Pillow's, except that damage raises ValueError instead of turning grey.
        pixels: Images = simplejpeg.decode_jpeg(content.read(), "GRAY" if image.mode == "L" else "RGB")
        if image.getexif().get(ORIENTATION_TAG, 1) == 1 and pixels.shape[2] == channels:
            return pixels
        exif = image.info.get("exif")
        image = to_pil(pixels)
        image.info = {"exif": exif} if exif else {}
    return _converted(image, channels)


def _converted(image: Image.Image, channels: int) -> Images:
    """An image turned upright and brought to the mode of `channels`, as [H, W, C]."""
    mode = MODES[channels]
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):
        sixteen_bits = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((sixteen_bits + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255
    if image.has_transparency_data and mode != "RGBA":
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    return to_pixels(image.convert(mode))


def _make_square(pixels: Images, crop: str) -> Images:
    height, width, channels = pixels.shape
    if crop == "resize" or height == width:
        return pixels
    if crop == "center":
        return _middle(pixels, min(height, width), min(height, width))
    square = np.full((max(height, width), max(height, width), channels), 255, np.uint8)
    _middle(square, height, width)[:] = pixels
    return square


def _middle(pixels: Images, height: int, width: int) -> Images:
    """The middle of an image; where as many pixels can't be left out on both sides, one fewer at the top or left."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]
