"""One image file to one square array of bytes, by one stated rule, or the reason why not.

The rule: PNG, JPEG or WebP, whatever the name says; one still picture of at most 100 megapixels; turned
upright as its EXIF data says; transparency laid on white, unless the alpha channel is kept; 16 bits scaled to
8; CMYK and palettes to RGB; made square (see CROPS); then the mean of each block where the side is a multiple
of the wanted resolution, else a Lanczos filter.  Never enlarged.
"""

import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from pggan.data.pyramid import Images, block_sums, rounded_mean

FORMATS = ("PNG", "JPEG", "WEBP")
CROPS = {
    "center": "the largest square in the middle",
    "resize": "squashed to a square",
    "pad": "white borders along the short sides",
}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
PIXEL_LIMIT = 100_000_000
ORIENTATION_TAG = 0x0112


class BadImage(Exception):
    """A file that cannot be used as an image, and why."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        name = str(self.path)
        # A name may hold codes that a terminal would obey.
        return f"{name if name.isprintable() else ascii(name)}: {self.reason}"


class ImageHeader(NamedTuple):
    """What the header of an image file tells: the size of the upright image, and whether it is grey."""

    width: int
    height: int
    grey: bool


def read_header(path: Path) -> ImageHeader:
    """The header of an image file; its pixels are not decoded.  Raises BadImage."""
    with _opened(path) as image:
        # PNG's own getexif would decode all pixels to look for EXIF data behind them.
        turned = Image.Image.getexif(image).get(ORIENTATION_TAG, 1) >= 5
        width, height = image.size[::-1] if turned else image.size
        grey = image.mode in ("1", "L", "LA") or image.mode.startswith("I")
    return ImageHeader(width, height, grey)


def square_side(width: int, height: int, crop: str) -> int:
    """How large a resolution an image of this size can serve without being enlarged."""
    return max(width, height) if crop == "pad" else min(width, height)


def load_image(path: Path, resolution: int, channels: int, crop: str) -> Images:
    """The image in a file as [R, R, C], by the rule of this module.  Raises BadImage.

    `channels` is 1, 3, or 4 to keep transparency; `crop` is a key of CROPS.
    """
    with _opened(path) as image:
        upright = ImageOps.exif_transpose(image)
    if square_side(*upright.size, crop) < resolution:
        raise BadImage(path, f"smaller than {resolution}x{resolution}")
    return _resample(_make_square(_convert(upright, MODES[channels]), crop), resolution)


@contextmanager
def _opened(path: Path) -> Iterator[Image.Image]:
    """The image of a file; whatever is wrong with it, here or inside the `with` block, becomes a BadImage."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):  # opening a pipe would wait for ever
            raise BadImage(path, "not a regular file")
        if status.st_size == 0:
            raise BadImage(path, "empty file")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large images (our own limit is below) and of odd EXIF data
            with Image.open(path, formats=FORMATS) as image:
                _check_header(path, image)
                yield image
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage(path, "not a PNG, JPEG or WebP image") from error
    except Image.DecompressionBombError as error:
        raise BadImage(path, f"more than {PIXEL_LIMIT // 10**6} megapixels") from error
    except OSError as error:
        raise BadImage(path, error.strerror or str(error)) from error
    except Exception as error:  # Pillow's decoders raise nearly every type for damaged files
        raise BadImage(path, f"damaged: {error}") from error


def _check_header(path: Path, image: Image.Image) -> None:
    if image.width * image.height > PIXEL_LIMIT:
        raise BadImage(path, f"more than {PIXEL_LIMIT // 10**6} megapixels: {image.width}x{image.height}")
    # A JPEG with a depth map or a second view behind it (MPO, as telephones write) is no animation: the first
    # frame is the photo.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise BadImage(path, "animated")


def _convert(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I"):
        sixteen_bits = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((sixteen_bits + 128) // 257).astype(np.uint8))  # 65535 = 257 * 255
    if image.has_transparency_data and mode != "RGBA":
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    return image.convert(mode)


def _make_square(image: Image.Image, crop: str) -> Image.Image:
    if crop == "resize":
        return image
    side = square_side(*image.size, crop)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    if crop == "center":
        return image.crop((left, top, left + side, top + side))
    square = Image.new(image.mode, (side, side), "white")
    square.paste(image, (-left, -top))
    return square


def _resample(image: Image.Image, resolution: int) -> Images:
    if image.width % resolution or image.height % resolution:
        image = image.resize((resolution, resolution), Image.Resampling.LANCZOS)
    pixels = np.asarray(image).reshape(image.height, image.width, -1)
    count = (image.width // resolution) * (image.height // resolution)
    return rounded_mean(block_sums(pixels, resolution), count)
