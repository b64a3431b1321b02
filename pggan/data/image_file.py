"""Convert an image file to a square uint8 image and its smaller levels, or say why the file can't be used.

The file must be PNG, JPEG, WebP or AVIF, whatever its extension.  It must hold one still picture of at most 64
megapixels, and be no decompression bomb.  EXIF or XMP data turns the picture upright.  Colour profiles are converted to
sRGB.  Transparent pixels are drawn on white, unless the dataset keeps the alpha channel.  16 bits are scaled to 8; CMYK
and palettes become RGB.  `crop` makes the picture square.  The picture is scaled down, never enlarged: each block of
pixels is averaged if the picture's side is a multiple of the resolution; a Lanczos filter is used for other sides.
H height, W width, R resolution, C channels.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageChops, ImageCms, UnidentifiedImageError
from PIL import ImageFile as pillow_file

from pggan.core.architecture import MIN_RESOLUTION
from pggan.data.formats import BadImage, Pixels, jpeg_pixels, kind_of

FORMATS = ("PNG", "JPEG", "WEBP", "AVIF")
EXTENSIONS = {".jpg": "JPEG", ".jpeg": "JPEG", ".png": "PNG", ".webp": "WEBP", ".avif": "AVIF", ".apng": "PNG"}
EXTENSIONS |= dict.fromkeys((".jpe", ".jfif", ".jfi", ".jif", ".pjpeg", ".pjp", ".mpo"), "JPEG")
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
GREYS = ("1", "L", "LA")
PIXEL_LIMIT = 64_000_000
BOMB_PIXELS = 16_000_000  # only larger images, over 64 MB when decoded as RGBA, are checked with BOMB_RATIO
BOMB_RATIO = 100  # a file with more pixels per byte is a decompression bomb; photographs have fewer than 10 per byte
ORIENTATION_TAG = 0x0112
TURNS = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
TURN = {number: Image.Transpose[name] for number, name in enumerate(TURNS, 2)}  # what turns an orientation upright


class ImageFile(NamedTuple):
    """An image file on disk, in an archive, or drawn on demand.  `path` names the file in messages; `open` opens it.

    An ImageFile can be pickled, so that worker processes can open the file.
    """

    path: Path
    open: Callable[[], BinaryIO]


class ImageHeader(NamedTuple):
    """What the header of an image file says: the size of the image before it is turned, and whether it is grey."""

    width: int
    height: int
    is_grey: bool


def read_header(file: ImageFile) -> ImageHeader:
    """Read the header of an image file; pixels are not decoded.  Raises BadImage."""
    with _opened(file) as image:
        return ImageHeader(*image.size, image.mode in GREYS or image.mode.startswith("I"))


def decode(file: ImageFile, channels: int, least_side: int = 0) -> tuple[Pixels, list[str]]:
    """Decode a file to its upright picture [H, W, C] with sRGB colours; raises BadImage.

    Also returns notes on the conversion, in fixed words, so that reports group files by note.
    Args: least_side: see `jpeg_pixels`.
    """
    with _opened(file, whole=True) as image:
        kind = "JPEG" if image.format == "MPO" else str(image.format)
        article, ending = "an" if kind == "AVIF" else "a", file.path.suffix.lower()
        is_deep = image.mode.startswith("I") or any(";16" in str(tile[3]) for tile in getattr(image, "tile", ()))
        notes = {
            f"{article} {kind} with the extension of another format": EXTENSIONS.get(ending, kind) != kind,
            "16 bits, scaled to 8": is_deep,
            "CMYK, converted to RGB": image.mode == "CMYK",
            "a palette, converted": image.mode in ("P", "PA"),
            "transparency": image.has_transparency_data,
            "not square": image.width != image.height,
            "wrong checksums, but of no pixels": "mended" in image.info,
        }
        pixels = None
        if kind == "JPEG":
            content: BinaryIO = image.fp  # type: ignore[attr-defined]
            content.seek(0)
            pixels = jpeg_pixels(content.read(), image.mode, least_side)
            notes["an odd JPEG file, but with all pixels"] = pixels is None
        if pixels is None or image.mode == "CMYK":
            image.load()  # EXIF data may follow the pixels in a PNG file, so pixels are decoded first
            pixels = None
        try:
            Image.Exif().load(image.info.get("exif", b""))  # `getexif` would hide errors of JPEG files
            orientation = Image.Image.getexif(image).get(ORIENTATION_TAG, 1)
            turn = TURN.get(orientation)
        except Exception:  # damaged EXIF data raises nearly every type of error
            orientation = turn = None
        notes["turned upright as its EXIF data says"] = turn is not None
        notes["an orientation in its EXIF data that can't be read"] = turn is None and orientation != 1
        transform = None
        if profile := image.info.get("icc_profile"):
            mode = "L" if image.mode in GREYS or image.mode.startswith("I") else "RGB"
            try:
                transform = _transform(profile, "CMYK" if image.mode == "CMYK" else mode)
            except (ImageCms.PyCMSError, OSError, TypeError, ValueError):
                notes["a colour profile that can't be used"] = True
        notes["a colour profile, converted to sRGB"] = transform is not None
        if pixels is None or turn is not None or transform is not None or pixels.shape[2] != channels:
            pixels = _converted(image if pixels is None else to_pil(pixels), turn, transform, channels)
        return pixels, [text for text, holds in notes.items() if holds]


def _converted(
    image: Image.Image, turn: Image.Transpose | None, transform: ImageCms.ImageCmsTransform | None, channels: int
) -> Pixels:
    """Turn an image upright, and convert its colours by `transform` and to `channels` channels; returns [H, W, C]."""
    if turn is not None:
        image = image.transpose(turn)
    if image.mode.startswith("I"):
        sixteen_bits = np.asarray(image).astype(np.uint32)
        image = Image.fromarray(((sixteen_bits + 128) // 257).astype(np.uint8))  # 16-bit white is 65535 = 257 * 255
    if transform is not None:
        alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
        image = transform.apply(image if image.mode == "CMYK" else image.convert(transform.input_mode))
        if alpha is not None:
            image.putalpha(alpha)
    if image.has_transparency_data and channels != 4:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return to_pixels(image.convert(MODES[channels]))


@lru_cache(maxsize=16)  # cached, because a camera writes the same profile into all files
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """The transform from a colour profile to sRGB for images of `mode`; None if it changes no colour by more than 1."""
    given, wanted = ImageCms.ImageCmsProfile(BytesIO(profile)), ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    transform = ImageCms.ImageCmsTransform(given, wanted, mode, "RGB")
    levels = np.mgrid[0:256:15, 0:256:15, 0:256:15].reshape(3, 18, -1).transpose(1, 2, 0).astype(np.uint8)
    colours = Image.fromarray(levels).convert(mode)
    difference = ImageChops.difference(transform.apply(colours), colours.convert("RGB"))
    return None if np.asarray(difference).max() <= 1 else transform


def load_image(file: ImageFile, resolution: int, channels: int, crop: str) -> tuple[Pixels, list[str]]:
    """Load a file as a square image [R, R, C], R = `resolution` (see the top of this file).  Raises BadImage.

    crop: how the image becomes square: center (keep its middle), resize (squash it), pad (add white borders).
    """
    pixels, notes = decode(file, channels)
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
        return to_pixels(image.resize((resolution, resolution), Image.Resampling.LANCZOS)), notes
    return block_mean(pixels, resolution), notes


def usable_side(width: int, height: int, crop: str) -> int:
    """The highest resolution for which an image of this size need not be enlarged."""
    return max(width, height) if crop == "pad" else min(width, height)


def _middle(pixels: Pixels, height: int, width: int) -> Pixels:
    """The middle `height` x `width` pixels; an odd row or column is cut at the bottom or right."""
    top, left = (pixels.shape[0] - height) // 2, (pixels.shape[1] - width) // 2
    return pixels[top : top + height, left : left + width]


@contextmanager
def _opened(file: ImageFile, whole: bool = False) -> Iterator[Image.Image]:
    """Open the image in a file.  Every error, also while the `with` block decodes pixels, becomes a BadImage.

    Args: whole: also compare the checksums of a PNG file.
    """
    try:
        with file.open() as content, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of EXIF errors, and of sizes that we check ourselves
            if (size := content.seek(0, 2)) == 0:
                raise BadImage("empty file")
            with _identified(content, whole) as image:
                _check_header(image, size)
                yield image
    except BadImage:
        raise
    except Image.DecompressionBombError as error:
        raise BadImage(f"more than {PIXEL_LIMIT // 10**6} megapixels") from error
    except Exception as error:  # decoders may raise any type of error for a damaged file
        raise BadImage(getattr(error, "strerror", None) or f"damaged: {error}") from error


def _identified(content: BinaryIO, whole: bool) -> Image.Image:
    """The image in a file; raises BadImage, which says what the file is, if it is no image that can be read.

    The image's info has an entry "mended" if checksums on which no pixel depends are wrong.
    """
    problem: Exception = UnidentifiedImageError()
    for lenient in (False, True):  # lenient: Pillow ignores the checksums of comments
        pillow_file.LOAD_TRUNCATED_IMAGES = lenient
        try:
            content.seek(0)
            if whole:
                with suppress(OSError), Image.open(content, formats=["PNG"]) as image:
                    image.verify()  # compares the checksums of pixels, which decoding does not
                content.seek(0)
            image = Image.open(content, formats=FORMATS)
            if not lenient:
                return image
            image.info["mended"] = True
            if image.mode != "P" and "transparency" not in image.info:  # these depend on the ignored checksums
                return image
        except (SyntaxError, UnidentifiedImageError) as error:
            problem = error
        finally:
            pillow_file.LOAD_TRUNCATED_IMAGES = False
    if isinstance(problem, SyntaxError):
        raise BadImage(f"damaged: {problem}") from problem
    content.seek(0)
    what = "or its header is damaged" if (kind := kind_of(content.read(64))) is None else f"but {kind}"
    raise BadImage(f"not a PNG, JPEG or WebP image, {what}") from problem


def _check_header(image: Image.Image, size: int) -> None:
    pixels = image.width * image.height
    if pixels > PIXEL_LIMIT:
        raise BadImage(f"more than {PIXEL_LIMIT // 10**6} megapixels: {image.width}x{image.height}")
    if pixels > BOMB_PIXELS and pixels > BOMB_RATIO * size:
        raise BadImage(f"a decompression bomb: {image.width}x{image.height} pixels in {size:,} bytes")
    # A phone's MPO file is a JPEG file with a second view, not an animation: the first frame is the photograph.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise BadImage("animated")


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
    dtype = np.uint32 if count < 2**23 else np.uint64  # the type must hold 2 * sum + count, at most 511 * count
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
