"""Converts images to bytes, arranges grids, and stores a run's grids for `pggan timelapse`.  Imports no torch."""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from pggan.core.atomic_io import atomic_write, parse_json
from pggan.sampling.marks import saving

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]

MIN_TILE = 128  # Smaller images in grids and sheets are enlarged to this side in pixels.
FOLDER = "timelapse"  # A run keeps small grids for `pggan timelapse` in samples/timelapse/.
TEXT_KEY = "pggan"  # A grid's PNG file stores its GridFacts in a text entry of this name.


def to_bytes(images: "Tensor") -> Pixels:
    """Convert images [N, C, R, R] in [-1, 1] to uint8 [N, R, R, C]; values are rounded and clipped."""
    scaled = (images.float() * 127.5 + 127.5).round().clamp(0, 255)
    pixels: Pixels = scaled.byte().permute(0, 2, 3, 1).cpu().numpy()
    return pixels


def grid(images: Pixels, columns: int) -> Pixels:
    """Arrange images [N, R, R, C] row by row in one picture [rows * R, columns * R, C]; empty places are black."""
    rows = -(-len(images) // columns)
    _, height, width, channels = images.shape
    padded = np.pad(images, [(0, rows * columns - len(images)), (0, 0), (0, 0), (0, 0)])
    tiled = padded.reshape(rows, columns, height, width, channels).swapaxes(1, 2)
    return np.ascontiguousarray(tiled.reshape(rows * height, columns * width, channels))


def contact_sheet(images: Pixels, columns: int, resolution: int) -> Pixels:
    """Arrange images in a grid; smaller images are first enlarged to min(MIN_TILE, `resolution`) pixels."""
    return grid(enlarge(images, max(min(resolution, MIN_TILE) // images.shape[1], 1)), columns)


def enlarge(images: Pixels, factor: int) -> Pixels:
    """Repeat every pixel `factor` times in both directions: [N, R, R, C] -> [N, factor R, factor R, C]."""
    return images.repeat(factor, axis=1).repeat(factor, axis=2)


def shrink(images: Pixels, factor: int) -> Pixels:
    """Average boxes of `factor` x `factor` pixels: [N, factor R, factor R, C] -> [N, R, R, C]."""
    count, height, width, channels = images.shape
    boxes = images.reshape(count, height // factor, factor, width // factor, factor, channels)
    averaged: Pixels = (boxes.mean((2, 4), dtype=np.float32) + 0.5).astype(np.uint8)
    return averaged


def to_pil(picture: Pixels) -> Image.Image:
    """Convert a picture [H, W, C] to PIL: RGB for 3 channels, RGBA for 4, else the first channel as grey."""
    channels = picture.shape[2]
    return Image.fromarray(picture if channels in (3, 4) else picture[:, :, 0])


@dataclass(frozen=True)
class GridFacts:
    """The state of training when a grid was drawn, and the number of columns of the grid."""

    images: int
    resolution: int
    alpha: float
    hours: float
    columns: int

    @property
    def stamp(self) -> str:
        time = f"{self.hours:.2f} h" if self.hours >= 1 else f"{60 * self.hours:.1f} min"
        return f"{self.images:,} images   {self.resolution}x{self.resolution}   {time}"


def save_grid(picture: Pixels, facts: GridFacts, folder: Path, mark: str | None = None) -> None:
    """Atomically write a grid [H, W, C] as a PNG in `folder`, with `facts` and the description `mark` as metadata."""
    text = PngInfo()
    text.add_text(TEXT_KEY, json.dumps(asdict(facts)))
    with atomic_write(folder / f"{facts.images:09d}.png") as temporary:
        to_pil(picture).save(temporary, **saving(mark, text))


def grids_in(folder: Path) -> dict[Path, GridFacts]:
    """Return {path: the facts that `save_grid` stored in the file} for all grids in `folder`, oldest first."""
    found = {}
    for path in sorted(folder.glob("*.png")):
        with suppress(OSError, ValueError, KeyError, TypeError), Image.open(path) as picture:
            found[path] = GridFacts(**parse_json(picture.info[TEXT_KEY]))
    return found
