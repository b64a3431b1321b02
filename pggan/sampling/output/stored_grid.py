"""The small grids that a run stores on its way, one PNG file each, for a film of the whole training.

R resolution, C channels.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from pggan.core.atomic_io import atomic_write, parse_json
from pggan.core.errors import UserError
from pggan.sampling.output.images import Pixels, to_pil

FOLDER = "timelapse"  # in samples/ of a run
TEXT_KEY = "pggan"  # of the PNG's text that holds the numbers


@dataclass(frozen=True)
class GridFacts:
    """Facts about a grid when it was drawn: images shown, resolution, alpha, hours trained, and images side by side."""

    images: int
    resolution: int
    alpha: float
    hours: float
    columns: int


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
    """The grids that a run has stored, with their numbers, the oldest first; raises UserError if there are none."""
    folder = run_dir / "samples" / FOLDER
    found = {path: facts for path in stored_grids(folder).values() if (facts := read_facts(path)) is not None}
    if not found:
        remedy = "Name a run directory; of a run without them, set milestones=true."
        raise UserError(f"{folder} has no grids that a run has stored.", remedy)
    return found


def read_tiles(path: Path, facts: GridFacts) -> Pixels:
    """The images uint8 [N, R, R, C] of a stored grid, row by row; R can be below the resolution they were drawn at."""
    with Image.open(path) as opened:
        picture = np.asarray(opened)
    picture = picture.reshape(*picture.shape[:2], -1)
    side = picture.shape[1] // facts.columns
    rows, channels = picture.shape[0] // side, picture.shape[2]
    tiles = picture.reshape(rows, side, facts.columns, side, channels).swapaxes(1, 2)
    return np.ascontiguousarray(tiles.reshape(-1, side, side, channels))
