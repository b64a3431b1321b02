"""Pixels to pictures: bytes, grids, sheets and files, and the grids that a run stores.  Imported without torch.

N images, R resolution, C channels.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from pggan.core.atomic_io import atomic_write, parse_json
from pggan.core.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Pixels = npt.NDArray[np.uint8]

STILLS = (".png", ".jpg", ".jpeg", ".webp")  # the kinds of files that hold one picture

MIN_TILE = 128  # pixels: in grids, images of early levels are enlarged to min(final resolution, this)
WIDEST = 2048  # pixels, of sheets whose images are enlarged
PAPER, INK = 232, 40  # grey levels of what no image covers, and of captions
CAPTION_HEIGHT, FONT_SIZE = 16, 11  # pixels
CONFIG_FILE = "config.yaml"  # of a run directory
FOLDER = "timelapse"  # of the small grids that a run stores for a film, in its samples/
TEXT_KEY = "pggan"  # of the PNG's text that holds their numbers


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


def sheet(images: Iterable[Pixels], columns: int, rows: int, side: int, captions: Sequence[str] = ()) -> Pixels:
    """Images [R, R, C], row by row, as one picture: each enlarged to `side` pixels, with its caption below, if any.

    Cells without an image are grey.
    """
    tiles = [enlarge(image[None], side // len(image))[0] for image in images]
    height = side + CAPTION_HEIGHT * bool(captions)
    picture = np.full((rows * height, columns * side, tiles[0].shape[2]), PAPER, np.uint8)
    picture[:, :, 3:] = 255  # opaque
    for number, tile in enumerate(tiles):
        top, left = number // columns * height, number % columns * side
        picture[top : top + side, left : left + side] = tile
        if captions:
            line = Image.new("L", (side, CAPTION_HEIGHT), PAPER)
            ImageDraw.Draw(line).text((2, 1), captions[number], fill=INK, font=ImageFont.load_default(FONT_SIZE))
            picture[top + side : top + height, left : left + side, :3] = np.asarray(line)[:, :, None]
    return picture


def sheet_zoom(resolution: int, columns: int) -> int:
    """The factor that makes small images of a sheet worth looking at, and no sheet wider than a screen."""
    zoom = 1
    while 2 * zoom * resolution <= min(MIN_TILE, WIDEST // columns):
        zoom *= 2
    return zoom


def enlarge(images: Pixels, factor: int) -> Pixels:
    """Repeat every pixel `factor` times in both directions.  [N, R, R, C] -> [N, factor R, factor R, C]"""
    return images.repeat(factor, axis=1).repeat(factor, axis=2)


def shrink(images: Pixels, factor: int) -> Pixels:
    """Average boxes of `factor` x `factor` pixels, rounded.  [N, factor R, factor R, C] -> [N, R, R, C]"""
    count, height, width, channels = images.shape
    boxes = images.reshape(count, height // factor, factor, width // factor, factor, channels)
    averaged: Pixels = (boxes.mean((2, 4), dtype=np.float32) + 0.5).astype(np.uint8)
    return averaged


def to_pil(picture: Pixels) -> Image.Image:
    """A picture [H, W, C] for PIL: grey, RGB or RGBA; of any other number of channels, the first as grey."""
    channels = picture.shape[2]
    return Image.fromarray(picture if channels in (3, 4) else picture[:, :, 0])


def encode_png(picture: Pixels) -> bytes:
    """One picture [H, W, C] as the content of a PNG file."""
    content = BytesIO()
    to_pil(picture).save(content, format="PNG")
    return content.getvalue()


def save_png(picture: Pixels, path: Path) -> bytes:
    """Write one picture [H, W, C] atomically; returns the content of the file."""
    content = encode_png(picture)
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    return content


def save_picture(picture: Pixels, path: Path) -> None:
    """Write one picture [H, W, C] atomically; raises UserError where the kind that `path` names can't hold it."""
    with writing(path) as temporary:
        # In a JPEG, colours at full resolution: else the edges of enlarged pixels are blurred.
        to_pil(picture).save(temporary, lossless=True, quality=95, subsampling=0)


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """A temporary path, which becomes `path`; what an encoder refuses, such as a size, is raised as UserError."""
    try:
        with atomic_write(path) as temporary:
            yield temporary
    except (OSError, ValueError) as error:
        if getattr(error, "errno", None) is not None:  # the disk, not the picture
            raise
        remedy = "Use a smaller zoom=, grid= or resolution=, or another kind of file."
        raise UserError(f"{path} can't hold these images: {error}.", remedy) from error


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


def output_path(out: str | None, run: str, name: str, ending: str = "") -> Path:
    """`out`; without it, a path that is not taken yet, `name`-001`ending` in samples/ of the run that `run` lies in.

    Of a generator that lies in no run, it is in the working directory.
    """
    if out is not None:
        return Path(out)
    path = Path(run)
    places = (path, path.parent, path.parent.parent)  # a run directory, a generator file in it, a checkpoint
    home = next((place / "samples" for place in places if (place / CONFIG_FILE).is_file()), Path())
    taken = [file.stem.rpartition("-")[2] for file in home.glob(f"{name}-*{ending}")]
    return home / f"{name}-{max((int(number) for number in taken if number.isdecimal()), default=0) + 1:03d}{ending}"


@dataclass(frozen=True)
class GridFacts:
    """Facts about a grid when it was drawn: images shown, resolution, alpha, hours trained, and images side by side."""

    images: int
    resolution: int
    alpha: float
    hours: float
    columns: int

    @property
    def stamp(self) -> str:
        """The line that is written below the grid: images shown, resolution and time."""
        time = f"{self.hours:.2f} h" if self.hours >= 1 else f"{60 * self.hours:.1f} min"
        return f"{self.images:,} images   {self.resolution}x{self.resolution}   {time}"


def stored_grids(folder: Path) -> dict[int, Path]:
    """The grids in `folder` by the images shown, the oldest first."""
    found = {int(path.stem): path for path in folder.glob("*.png") if path.stem.isdecimal()}
    return dict(sorted(found.items()))


def save_grid(picture: Pixels, facts: GridFacts, folder: Path) -> None:
    """Write a grid [H, W, C] with its numbers as text, atomically."""
    text = PngInfo()
    text.add_text(TEXT_KEY, json.dumps(asdict(facts)))
    with atomic_write(folder / f"{facts.images:09d}.png") as temporary:
        to_pil(picture).save(temporary, format="PNG", pnginfo=text)


def read_facts(path: Path) -> GridFacts | None:
    """The numbers in a stored grid; None for any other file."""
    try:
        with Image.open(path) as picture:
            facts = GridFacts(**parse_json(picture.info[TEXT_KEY]))
        numbers = (facts.images, facts.resolution, facts.alpha, facts.hours, facts.columns)
        whole = all(type(number) is int for number in (facts.images, facts.resolution, facts.columns))
        return facts if whole and all(number >= 0 for number in numbers) and facts.columns else None
    except (OSError, UnidentifiedImageError, ValueError, KeyError, TypeError):
        return None


def grids_of_run(run_dir: Path) -> dict[Path, GridFacts]:
    """The grids that a run has stored in its last layout, with their numbers, the oldest first.

    Raises UserError if there are none.
    """
    folder = run_dir / "samples" / FOLDER
    found = {path: facts for path in stored_grids(folder).values() if (facts := read_facts(path)) is not None}
    if not found:
        raise UserError(f"{folder} has no grids that a run has stored.", "Name a run directory.")
    columns = [*found.values()][-1].columns
    return {path: facts for path, facts in found.items() if facts.columns == columns}
