"""Tensors to pictures: bytes, grids, PNG and JPEG.  N images, R resolution, C channels.  Imported without torch."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image

from pggan.core.atomic_io import atomic_write
from pggan.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]

JPEG = (".jpg", ".jpeg")
STILLS = (".png", *JPEG)  # the kinds of files that hold one picture
JPEG_QUALITY = 95  # of 100; above, PIL says, files become larger and hardly better
MAX_JPEG = 65_500  # pixels a side, of libjpeg; the format has 65,535

MIN_TILE = 128  # pixels: in grids, images of early levels are enlarged to min(final resolution, this)


def to_bytes(images: "Tensor") -> Pixels:
    """Images [N, C, R, R] in [-1, 1] as uint8 [N, R, R, C], rounded and clipped."""
    scaled = (images.float() * 127.5 + 127.5).round().clamp(0, 255)
    pixels: Pixels = scaled.byte().permute(0, 2, 3, 1).cpu().numpy()
    return pixels


def grid(images: Pixels, columns: int) -> Pixels:
    """Images [N, R, R, C] as one picture [rows * R, columns * R, C], row by row; missing ones are black."""
    rows = -(-len(images) // columns)
    _, height, width, channels = images.shape
    padded = np.pad(images, [(0, rows * columns - len(images)), (0, 0), (0, 0), (0, 0)])
    tiled = padded.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return np.ascontiguousarray(tiled.reshape(rows * height, columns * width, channels))


def contact_sheet(images: Pixels, columns: int, resolution: int) -> Pixels:
    """A grid of images of a run up to `resolution`, small ones enlarged so that they are worth looking at."""
    tile = min(resolution, MIN_TILE)
    return grid(enlarge(images, max(tile // images.shape[1], 1)), columns)


def enlarge(images: Pixels, factor: int) -> Pixels:
    """Repeat every pixel `factor` times in both directions.  [N, R, R, C] -> [N, factor R, factor R, C]"""
    return images.repeat(factor, axis=1).repeat(factor, axis=2)


def shrink(images: Pixels, factor: int) -> Pixels:
    """Average boxes of `factor` x `factor` pixels, rounded.  [N, factor R, factor R, C] -> [N, R, R, C]"""
    count, height, width, channels = images.shape
    boxes = images.reshape(count, height // factor, factor, width // factor, factor, channels)
    averaged: Pixels = (boxes.mean((2, 4), dtype=np.float32) + 0.5).astype(np.uint8)
    return averaged


def enlarge_smoothly(images: Pixels, factor: int) -> Pixels:
    """Enlarge by bicubic interpolation.  [N, R, R, C] -> [N, factor R, factor R, C], C of 1, 3 or 4; else 1 of them."""
    if factor == 1:
        return images
    pictures = map(to_pil, images)
    size = (factor * images.shape[2], factor * images.shape[1])
    larger = np.stack([np.asarray(picture.resize(size, Image.Resampling.BICUBIC)) for picture in pictures])
    return larger.reshape(*larger.shape[:3], -1)


def to_pil(picture: Pixels) -> Image.Image:
    """A picture [H, W, C] for PIL: grey, RGB or RGBA; of any other number of channels, the first as grey."""
    channels = picture.shape[2]
    return Image.fromarray(picture if channels in (3, 4) else picture[:, :, 0])


def save_png(picture: Pixels, path: Path) -> bytes:
    """Write one picture [H, W, C] atomically; returns the content of the file."""
    content = encode_png(picture)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return content


def encode_png(picture: Pixels) -> bytes:
    """One picture [H, W, C] as the content of a PNG file."""
    content = BytesIO()
    to_pil(picture).save(content, format="PNG")
    return content.getvalue()


def save_picture(picture: Pixels, path: Path) -> None:
    """Write one picture [H, W, C] atomically, as the kind of STILLS that `path` ends as.

    Raises UserError for what no JPEG can hold.
    """
    if path.suffix.lower() not in JPEG:
        save_png(picture, path)
        return
    height, width, channels = picture.shape
    require_jpeg(path, width, height, channels)
    with atomic_write(path) as temporary:
        # Colours at full resolution: else the edges of enlarged pixels are blurred.
        to_pil(picture).save(temporary, format="JPEG", quality=JPEG_QUALITY, subsampling=0)


def require_jpeg(path: Path, width: int, height: int, channels: int) -> None:
    """Raise UserError for what no JPEG can hold: transparency, and more than MAX_JPEG pixels a side."""
    if channels == 4:  # RGBA
        raise UserError(f"{path.name} can't hold the transparency of these images.", "Use a file that ends in .png.")
    if max(width, height) > MAX_JPEG:
        problem = f"{path.name} would have {width:,} x {height:,} pixels; a JPEG has at most {MAX_JPEG:,} a side."
        raise UserError(problem, "Use a file that ends in .png, or a smaller zoom=.")


def check_output(out: str, kinds: tuple[str, ...], key: str = "out") -> Path:
    """`out`, given as `key`, as a path whose directory exists; raises UserError unless it ends as one of `kinds`."""
    path = Path(out)
    if path.suffix.lower() not in kinds:
        raise UserError(f"{key}={out} does not end in {' or '.join(kinds)}.", "The ending chooses the kind of file.")
    make_folder(path.parent, key)
    return path


def make_folder(path: Path, key: str) -> Path:
    """Create the directory `path`; raises UserError, naming `key`, when that can't be done."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"{path} (from {key}=) can't be a directory: {error.strerror}.", "Name another place."
        ) from error
    return path


@contextmanager
def new_folder(path: Path, key: str) -> Iterator[Path]:
    """The directory `path`, created; when the block fails, what was created for it and is empty is removed again.

    Raises UserError, naming `key`, when it can't be created.
    """
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    try:
        yield make_folder(path, key)
    except BaseException:
        with suppress(OSError):  # it is not empty
            for folder in missing:
                folder.rmdir()
        raise
