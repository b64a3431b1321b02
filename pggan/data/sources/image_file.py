"""One image file to one square array of bytes, by one rule, or the reason why not.

The rule: PNG, JPEG, WebP, or a NumPy array (.npy), whatever the name says; one still picture, neither more than
64 megapixels nor a decompression bomb; turned upright as its EXIF data says; transparency laid on white, unless the
alpha channel is kept; 16 bits scaled to 8, and numbers from 0 to 1 to 0 … 255; CMYK and palettes to RGB; made square
(see CROPS); then the mean of each block where the side is a multiple of the wanted resolution, else a Lanczos filter.
Never enlarged.
"""

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import BinaryIO, NamedTuple, Protocol

import numpy as np
import simplejpeg
from PIL import Image, ImageOps, UnidentifiedImageError

from pggan.data.format.levels import Images, block_mean
from pggan.data.sources.face_crop import Landmarks, align_face, face_side, to_pil, to_pixels
from pggan.data.sources.npy import MAGIC, ArrayHeader, array_header, array_pixels

FORMATS = ("PNG", "JPEG", "WEBP")
EXTENSIONS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP", ".npy": "NPY"}
CROPS = {
    "center": "the largest square in the middle",
    "resize": "squashed to a square",
    "pad": "white borders along the short sides",
    "face": "aligned by eyes and mouth, like FFHQ",
}
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


class ImageFile(Protocol):
    """Where the bytes of an image are."""

    @property
    def path(self) -> Path:
        """Its name in messages."""

    def open(self) -> BinaryIO:
        """Its bytes."""


class ImageHeader(NamedTuple):
    """What the header of an image file says: the size of the upright image, its channels, what to note.

    channels: 1 grey, 3 colour, 4 with transparency; notes: what will be converted, in the same words for all files.
    """

    width: int
    height: int
    channels: int
    notes: tuple[str, ...] = ()


class Target(NamedTuple):
    """What every image becomes: [resolution, resolution, channels], made square by `crop`, a key of CROPS.

    keep: the share of the square's side that stays, around its middle.
    """

    resolution: int
    channels: int
    crop: str
    keep: float = 1.0


def square_side(width: int, height: int, crop: str, keep: float = 1.0) -> int:
    """How large a resolution an image of this size can serve without being enlarged, unless cropped to a face."""
    return int((max(width, height) if crop == "pad" else min(width, height)) * keep)


def read_header(file: Path | ImageFile) -> ImageHeader:
    """The header of an image file; its pixels are not decoded.  Raises BadImage."""
    with _opened(file) as image:
        if isinstance(image, ArrayHeader):
            return ImageHeader(image.width, image.height, image.channels, image.notes)
        # PNG's own getexif would decode all pixels to look for EXIF data behind them.
        turned = Image.Image.getexif(image).get(ORIENTATION_TAG, 1)
        width, height = image.size[::-1] if turned >= 5 else image.size
        grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
        channels = 1 if grey else 4 if image.has_transparency_data else 3
        format_name = "JPEG" if image.format == "MPO" else str(image.format)
        long_side, short_side = max(width, height), min(width, height)
        notes = {
            f"a {format_name} behind another extension": EXTENSIONS.get(_path(file).suffix.lower(), format_name)
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


def load_image(file: Path | ImageFile, target: Target, landmarks: Landmarks | None = None) -> Images:
    """The image in a file as [R, R, C], by the rule of this module.  Raises BadImage.

    `landmarks`: of the face, in pixels of the upright image; for crop=face.
    """
    path = _path(file)
    with _opened(file) as image:
        pixels = array_pixels(image) if isinstance(image, ArrayHeader) else _decoded(image, target.channels)
        if pixels.shape[2] != target.channels:
            pixels = _converted(to_pil(pixels), target.channels)
    if target.crop == "face":
        return _aligned(path, pixels, target.resolution, landmarks)
    if square_side(pixels.shape[1], pixels.shape[0], target.crop, target.keep) < target.resolution:
        raise BadImage(path, f"smaller than {target.resolution}x{target.resolution}")
    square = _make_square(pixels, target.crop)
    return resample(_middle(square, *(int(side * target.keep) for side in square.shape[:2])), target.resolution)


def _aligned(path: Path, pixels: Images, resolution: int, landmarks: Landmarks | None) -> Images:
    if landmarks is None:
        raise BadImage(path, "no landmarks in the landmarks file")
    if face_side(landmarks) < resolution:
        raise BadImage(path, f"a face smaller than {resolution}x{resolution}")
    try:
        return align_face(pixels, landmarks, resolution)
    except ValueError as error:
        raise BadImage(path, str(error)) from error


def _path(file: Path | ImageFile) -> Path:
    return file if isinstance(file, Path) else file.path


@contextmanager
def _opened(file: Path | ImageFile) -> Iterator[Image.Image | ArrayHeader]:
    """The image of a file; whatever is wrong with it, here or inside the `with` block, becomes a BadImage."""
    path, start = _path(file), b""
    try:
        with open_regular(file) if isinstance(file, Path) else file.open() as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images (our own limit is below) and of odd EXIF data
            size = content.seek(0, 2)
            content.seek(0)
            start = content.read(len(MAGIC))
            content.seek(0)
            if size == 0:
                raise BadImage(path, "empty file")
            if start == MAGIC:
                yield array_header(content, size)
                return
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


def open_regular(path: Path) -> BinaryIO:
    """A file of the disk, opened; raises BadImage for anything but a regular file."""
    if not stat.S_ISREG(path.stat().st_mode):  # opening a pipe would wait for ever
        raise BadImage(path, "not a regular file")
    return path.open("rb")


def _check_header(path: Path, image: Image.Image, size: int) -> None:
    pixels = image.width * image.height
    if pixels > PIXEL_LIMIT:
        raise BadImage(path, f"more than {PIXEL_LIMIT // 10**6} megapixels: {image.width}x{image.height}")
    if pixels > BOMB_PIXELS and pixels > BOMB_RATIO * size:
        raise BadImage(path, f"a decompression bomb: {image.width}x{image.height} pixels in {size:,} bytes")
    # A JPEG with a depth map or a second view behind it (MPO, as telephones write) is no animation: the first
    # frame is the photo.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise BadImage(path, "animated")


# ---- pixels


def _decoded(image: Image.Image, channels: int) -> Images:
    """The upright pixels of an opened file as [H, W, C]."""
    if image.format in ("JPEG", "MPO") and image.mode in ("L", "RGB"):
        pixels = _strict_jpeg(image)
        if pixels is not None:
            if image.getexif().get(ORIENTATION_TAG, 1) == 1 and pixels.shape[2] == channels:
                return pixels
            exif = image.info.get("exif")
            image = to_pil(pixels)
            image.info = {"exif": exif} if exif else {}
    return _converted(image, channels)


def _strict_jpeg(image: Image.Image) -> Images | None:
    """The pixels of a JPEG, the same as Pillow's, except that damage raises ValueError instead of turning grey."""
    content: BinaryIO = image.fp  # type: ignore[attr-defined]
    if content.seek(0, 2) > STRICT_BYTES:
        return None
    content.seek(0)
    pixels: Images = simplejpeg.decode_jpeg(content.read(), "GRAY" if image.mode == "L" else "RGB")
    return pixels


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
    side = square_side(width, height, crop)
    if crop == "center":
        return _middle(pixels, side, side)
    square = np.full((side, side, channels), 255, np.uint8)
    _middle(square, height, width)[:] = pixels
    return square


def _middle(pixels: Images, height: int, width: int) -> Images:
    """The middle of an image; where as many pixels can't be left out on both sides, one fewer at the top or left."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


def resample(pixels: Images, resolution: int) -> Images:
    """[H, W, C], of any size, to [r, r, C]: the mean of each block where sides are multiples, else Lanczos."""
    height, width, _ = pixels.shape
    if height % resolution or width % resolution:
        return to_pixels(
            to_pil(np.ascontiguousarray(pixels)).resize((resolution, resolution), Image.Resampling.LANCZOS)
        )
    return block_mean(pixels, resolution)


class Loaded(NamedTuple):
    """An image file whose bytes are in memory."""

    path: Path
    content: bytes

    def open(self) -> BinaryIO:
        """Its bytes."""
        return BytesIO(self.content)
