"""Convert an image file to a square uint8 image and its smaller levels, or say why the file can't be used.

The file must be PNG, JPEG or WebP, whatever its extension.  It must hold one still picture of at most 64 megapixels,
and be no decompression bomb.  EXIF data turns the picture upright.  Transparent pixels are drawn on white, unless the
dataset keeps the alpha channel.  16 bits are scaled to 8; CMYK and palettes become RGB.  `crop` makes the picture
square.  The picture is scaled down, never enlarged: by averages of square groups of pixels if the picture's side is a
multiple of the resolution, else by a Lanczos filter.
H height, W width, R resolution, C channels.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from pggan.core.architecture import MIN_RESOLUTION

FORMATS = ("PNG", "JPEG", "WEBP")
EXTENSIONS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".webp": "WEBP"}
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
PIXEL_LIMIT = 64_000_000
BOMB_PIXELS = 16_000_000  # only larger images, over 64 MB when decoded as RGBA, are checked with BOMB_RATIO
BOMB_RATIO = 100  # a file with more pixels per byte is a decompression bomb; photographs have fewer than 10 per byte
ORIENTATION_TAG = 0x0112

Pixels = NDArray[np.uint8]  # [H, W, C]


class BadImage(Exception):
    """The error for a file that can't be used as an image; the message says why."""


class ImageFile(NamedTuple):
    """An image file on disk, in an archive, or drawn on demand.  `path` names the file in messages; `open` opens it.

    An ImageFile can be pickled, so that worker processes can open the file.
    """

    path: Path
    open: Callable[[], BinaryIO]


class ImageHeader(NamedTuple):
    """What the header of an image file says: the size of the upright image, and whether it is grey.

    notes: the conversions that the image needs, in the same words for all files, so that a report can group files.
    """

    width: int
    height: int
    is_grey: bool
    notes: tuple[str, ...] = ()


def read_header(file: ImageFile) -> ImageHeader:
    """Read the header of an image file; pixels are not decoded.  Raises BadImage."""
    with _opened(file) as image:
        # Pillow's PngImageFile.getexif would decode all pixels, because EXIF data may follow the pixels in the file.
        turned = Image.Image.getexif(image).get(ORIENTATION_TAG, 1)
        width, height = image.size[::-1] if turned >= 5 else image.size
        is_deep = image.mode.startswith("I")
        kind = "JPEG" if image.format == "MPO" else str(image.format)
        notes = {
            f"a {kind} with the extension of another format": EXTENSIONS.get(file.path.suffix.lower(), kind) != kind,
            "16 bits, scaled to 8": is_deep or any(";16" in str(tile[3]) for tile in getattr(image, "tile", ())),
            "CMYK, converted to RGB": image.mode == "CMYK",
            "a palette, converted": image.mode in ("P", "PA"),
            "transparency": image.has_transparency_data,
            "turned upright as its EXIF data says": turned != 1,
            "not square": width != height,
        }
        is_grey = is_deep or image.mode in ("1", "L", "LA")
    return ImageHeader(width, height, is_grey, tuple(text for text, holds in notes.items() if holds))


def decode(file: ImageFile, channels: int) -> Pixels:
    """Decode an image file to pixels [H, W, C], turned upright.  Raises BadImage."""
    with _opened(file) as image:
        content: BinaryIO = image.fp  # type: ignore[attr-defined]
        if image.format not in ("JPEG", "MPO") or image.mode not in ("L", "RGB"):
            return _converted(image, channels)
        content.seek(0)
        # simplejpeg decodes the same pixels as Pillow, but refuses damaged files; Pillow fills missing parts with grey.
        pixels: Pixels = simplejpeg.decode_jpeg(content.read(), "GRAY" if image.mode == "L" else "RGB")
        exif = image.info.get("exif")
        if not exif and pixels.shape[2] == channels:
            return pixels
        upright = to_pil(pixels)
        upright.info["exif"] = exif
        return _converted(upright, channels)


def load_image(file: ImageFile, resolution: int, channels: int, crop: str) -> Pixels:
    """Load a file as a square image [R, R, C], R = `resolution` (see the top of this file).  Raises BadImage.

    crop: how the image becomes square: center (keep its middle), resize (squash it), pad (add white borders).
    """
    pixels = decode(file, channels)
    height, width, _ = pixels.shape
    if usable_side(width, height, crop) < resolution:
        raise BadImage(f"smaller than {resolution}x{resolution}")
    if crop == "center":
        pixels = _middle(pixels, min(height, width), min(height, width))
    elif crop == "pad" and height != width:
        photo, side = pixels, max(height, width)
        if side**2 > 4 * PIXEL_LIMIT:
            raise BadImage(f"too long and thin: with white borders, it would have {side}x{side} pixels")
        pixels = np.full((side, side, channels), 255, np.uint8)
        _middle(pixels, height, width)[:] = photo
    if pixels.shape[0] % resolution or pixels.shape[1] % resolution:
        image = to_pil(np.ascontiguousarray(pixels))
        return to_pixels(image.resize((resolution, resolution), Image.Resampling.LANCZOS))
    return block_mean(pixels, resolution)


def usable_side(width: int, height: int, crop: str) -> int:
    """The highest resolution for which an image of this size need not be enlarged."""
    return max(width, height) if crop == "pad" else min(width, height)


def _middle(pixels: Pixels, height: int, width: int) -> Pixels:
    """The middle `height` x `width` pixels; an odd row or column is cut at the bottom or right."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


@contextmanager
def _opened(file: ImageFile) -> Iterator[Image.Image]:
    """Open the image in a file.  Any error becomes a BadImage, also an error in the `with` block."""
    try:
        with file.open() as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of EXIF errors, and of sizes that we check ourselves
            if (size := content.seek(0, 2)) == 0:
                raise BadImage("empty file")
            with Image.open(content, formats=FORMATS) as image:
                _check_header(image, size)
                yield image
    except BadImage:
        raise
    except UnidentifiedImageError as error:
        raise BadImage("not a PNG, JPEG or WebP image, or its header is damaged") from error
    except Image.DecompressionBombError as error:
        raise BadImage(f"more than {PIXEL_LIMIT // 10**6} megapixels") from error
    except Exception as error:  # decoders may raise any type of error for a damaged file
        raise BadImage(getattr(error, "strerror", None) or f"damaged: {error}") from error


def _check_header(image: Image.Image, size: int) -> None:
    pixels = image.width * image.height
    if pixels > PIXEL_LIMIT:
        raise BadImage(f"more than {PIXEL_LIMIT // 10**6} megapixels: {image.width}x{image.height}")
    if pixels > BOMB_PIXELS and pixels > BOMB_RATIO * size:
        raise BadImage(f"a decompression bomb: {image.width}x{image.height} pixels in {size:,} bytes")
    # A phone's MPO file is a JPEG file with a second view, not an animation: the first frame is the photograph.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise BadImage("animated")


def _converted(image: Image.Image, channels: int) -> Pixels:
    """Turn an image upright and convert it to `channels` channels; returns [H, W, C]."""
    mode = MODES[channels]
    ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith("I"):
        sixteen_bits = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((sixteen_bits + 128) // 257).astype(np.uint8))  # 16-bit white is 65535 = 257 * 255
    if image.has_transparency_data and mode != "RGBA":
        paper = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(paper, image.convert("RGBA"))
    return to_pixels(image.convert(mode))


def to_pil(pixels: Pixels) -> Image.Image:
    """Pixels [H, W, C] as a Pillow image."""
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)


def to_pixels(image: Image.Image) -> Pixels:
    """A Pillow image as pixels [H, W, C]."""
    return np.asarray(image).reshape(image.height, image.width, -1)


# ---- smaller levels of an image pyramid: exact box means, rounded half up


def block_sums(image: NDArray[Any], resolution: int, kind: type[np.unsignedinteger[Any]] = np.uint32) -> NDArray[Any]:
    """The sums of blocks of (H/R) x (W/R) pixels: [H, W, C] to [R, R, C].  R = `resolution` divides H and W."""
    height, width, channels = image.shape
    tall, wide = height // resolution, width // resolution
    rows = np.add(image[0::tall], image[1::tall] if tall > 1 else 0, dtype=kind)
    for offset in range(2, tall):
        rows += image[offset::tall]
    parts = rows.reshape(-1, wide * channels).T
    sums = np.empty((parts.shape[1], channels), kind)
    for channel in range(channels):  # one channel at a time: numpy is slow if its inner loop has only 3 steps
        np.add(parts[channel], parts[channel + channels] if wide > 1 else 0, out=sums[:, channel])
        for part in parts[channel + 2 * channels :: channels]:
            sums[:, channel] += part
    return sums.reshape(resolution, resolution, channels)


def block_mean(image: Pixels, resolution: int) -> Pixels:
    """Rounded means of blocks of (H/R) x (W/R) pixels: [H, W, C] to [R, R, C].  R = `resolution` divides H and W."""
    height, width, _ = image.shape
    if height == width == resolution << (height // resolution).bit_length() - 1:
        return all_levels(image, resolution)[-1]
    count = (height // resolution) * (width // resolution)
    dtype = np.uint32 if count < 2**23 else np.uint64  # 2 * sum + count is at most 511 * count
    doubled = 2 * block_sums(image, resolution, dtype)
    mean: Pixels = ((doubled + count) // (2 * count)).astype(np.uint8)  # rounds half up
    return mean


def all_levels(image: Pixels, resolution: int = MIN_RESOLUTION) -> list[Pixels]:
    """An image [R, R, C] and its block means at R/2, R/4 … `resolution`; each mean is rounded once, from exact sums."""
    levels, sums, bits = [np.ascontiguousarray(image)], image, 0  # a block holds 2^bits pixels
    while len(sums) > resolution:
        # A sum of up to 256 uint8 pixels, plus 128 for rounding, fits into uint16, which is twice as fast as uint32.
        sums, bits = block_sums(sums, len(sums) // 2, np.uint16 if bits + 2 <= 8 else np.uint32), bits + 2
        levels.append(((sums + sums.dtype.type(1 << (bits - 1))) >> bits).astype(np.uint8))
    return levels
