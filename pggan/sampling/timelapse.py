"""`pggan timelapse`: the small grids that a run stores on its way, and a film of them.  Without torch."""

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont, UnidentifiedImageError
from PIL.PngImagePlugin import PngInfo

from pggan.config import TimelapseConfig
from pggan.core.atomic_io import atomic_write, parse_json
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.sampling.film import ANIMATED, film_zoom, require_film, save_film
from pggan.sampling.images import Pixels, check_output, output_path, to_pil

FOLDER = "timelapse"  # in samples/ of a run
TEXT_KEY = "pggan"  # of the PNG's text that holds the numbers
STAMP_SHARE = 16  # of the height, below the images
MIN_STAMP = 20  # pixels


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


def run(config: TimelapseConfig) -> int:
    """Write the film; returns the exit code."""
    target = output_path(config.out, config.run, "timelapse", ".webp")
    grids = grids_of_run(Path(config.run))
    first, *_, last = [*grids.values()] * 2
    with Image.open([*grids][-1]) as largest:
        width, height = largest.size
    zoom = config.zoom or film_zoom(width, height)
    width, height = zoom * width, zoom * height
    stamp_height = max(height // STAMP_SHARE, MIN_STAMP)
    out = check_output(str(target), ANIMATED)
    require_film(out, width, height + stamp_height)
    count = max(round(config.seconds * config.fps), 1)
    save_film(film_of(grids, count, width, height, stamp_height), count, config.fps, out)
    print(f"{out}: {count} frames, {first.stamp} to {last.stamp}")
    print(next_command("evaluate", "checkpoint=all", run=config.run))
    return 0


def film_of(grids: dict[Path, GridFacts], count: int, width: int, height: int, stamp_height: int) -> Iterator[Pixels]:
    """`count` frames uint8 [H, W, 3]: images shown pass evenly, and each frame is the last grid at its time.

    Args: width, height: of the grids in a frame, in pixels; stamp_height: below them.
    """
    paths, facts = [*grids], [*grids.values()]
    longest = max((each.stamp for each in facts), key=len)
    times = [each.images for each in facts]
    drawn, frame = -1, np.empty(0, np.uint8)
    for time in np.linspace(times[0], times[-1], count) if count > 1 else [times[-1]]:
        if (shown := bisect_right(times, time) - 1) != drawn:
            drawn, frame = shown, np.zeros((height + stamp_height, width, 3), np.uint8)
            with Image.open(paths[drawn]) as grid:
                frame[:height] = np.asarray(grid.convert("RGB").resize((width, height), Image.Resampling.NEAREST))
            frame[height:] = draw_stamp(facts[drawn].stamp, width, stamp_height, longest)
        yield frame


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


def draw_stamp(text: str, width: int, height: int, longest: str) -> Pixels:
    """A line of white text on black, uint8 [height, width, 3], as large as lets the `longest` one fit, too."""
    size = max(height * 2 // 3, 2)
    while size > 2 and ImageFont.load_default(size).getlength(longest) > width - size:
        size -= 1
    picture = Image.new("RGB", (width, height))
    font = ImageFont.load_default(size)
    ImageDraw.Draw(picture).text((width / 2, height / 2), text, fill="white", font=font, anchor="mm")
    return np.asarray(picture)
