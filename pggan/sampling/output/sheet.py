"""Contact sheets of any number of images, with captions.  R resolution, C channels."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pggan.sampling.output.images import JPEG, MIN_TILE, Pixels, enlarge
from pggan.sampling.output.jpeg_stream import jpeg_stream
from pggan.sampling.output.png_stream import png_stream

PAPER, INK = 232, 40  # grey levels of what no image covers, and of captions
CAPTION_HEIGHT = 16  # pixels
OPAQUE = 255
FONT_SIZE = 11  # pixels
WIDEST = 2048  # pixels, of sheets whose images are enlarged


@dataclass(frozen=True)
class Tile:
    """An image uint8 [R, R, C] of a sheet, and the line below it."""

    image: Pixels
    caption: str


def automatic_zoom(resolution: int, columns: int) -> int:
    """The factor that makes small images of a sheet worth looking at, and no sheet wider than a screen."""
    zoom = 1
    while 2 * zoom * resolution <= min(MIN_TILE, WIDEST // columns):
        zoom *= 2
    return zoom


def save_sheet(tiles: Iterable[Tile], path: Path, columns: int, rows: int, side: int, *, captions: bool) -> None:
    """Write `tiles`, row by row, as a PNG or JPEG file; images are enlarged to `side` pixels, a multiple of theirs.

    Of a PNG, only one row of them is in memory at a time.  Cells without a tile are grey.
    """
    remaining = iter(tiles)
    row = list(islice(remaining, columns))
    channels, height = row[0].image.shape[2], side + CAPTION_HEIGHT * captions
    stream = jpeg_stream if path.suffix.lower() in JPEG else png_stream
    with stream(path, columns * side, rows * height, channels) as append:
        for _ in range(rows):
            append(_draw_row(row, columns, side, channels, captions=captions))
            row = list(islice(remaining, columns))


def _draw_row(row: list[Tile], columns: int, side: int, channels: int, *, captions: bool) -> Pixels:
    """A row of a sheet [H, columns * side, C], of as many tiles or fewer."""
    picture = np.full((side + CAPTION_HEIGHT * captions, columns * side, channels), PAPER, np.uint8)
    picture[:, :, 3:] = OPAQUE
    for number, tile in enumerate(row):
        left = slice(number * side, (number + 1) * side)
        picture[:side, left] = enlarge(tile.image[None], side // tile.image.shape[0])[0]
        if captions:
            picture[side:, left, :3] = _draw_text(tile.caption, side)[:, :, None]
    return picture


def _draw_text(text: str, width: int) -> Pixels:
    """A caption [CAPTION_HEIGHT, width], in grey levels, cut where it is too long."""
    line = Image.new("L", (width, CAPTION_HEIGHT), PAPER)
    ImageDraw.Draw(line).text((2, 1), text, fill=INK, font=ImageFont.load_default(FONT_SIZE))
    return np.asarray(line)
