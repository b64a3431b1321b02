"""`pggan timelapse`: a film of the small grids that a run stores during training.  This module imports no torch."""

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pggan.config.commands import TimelapseConfig
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.sampling.files import ANIMATED, MAX_FILM, film_zoom, output_path, save_film
from pggan.sampling.images import FOLDER, GridFacts, Pixels, stored_grids
from pggan.sampling.marks import mark_line

STAMP_SHARE = 16  # the line of text below the images has 1/16 of the images' height
STAMP_LETTERS = 22  # the longest line of text below the images is 22 times as wide as its font size


def run(config: TimelapseConfig) -> int:
    """Write the film of a run's stored grids; returns the exit code of `pggan timelapse`."""
    out = output_path(config.out, config.run, "timelapse", ANIMATED)
    grids = grids_of_run(Path(config.run))
    first, *_, last = [*grids.values()] * 2
    count = max(round(config.seconds * config.fps), 1)
    mark = mark_line(config.marks, config.run, f"seeds=0-{first.columns**2 - 1}")
    save_film(film_of(grids, count), count, config.fps, out, mark)
    print(f"{out}: {count} frames, {first.stamp} to {last.stamp}")
    print(next_command("evaluate", "checkpoint=all", run=config.run))
    return 0


def film_of(grids: dict[Path, GridFacts], count: int, most: int = MAX_FILM) -> Iterator[Pixels]:
    """Yield `count` frames [H, W, 3] at equal steps of images shown; each frame shows the newest grid so far."""
    paths, facts = [*grids], [*grids.values()]
    with Image.open(paths[-1]) as largest:
        side = largest.width * film_zoom(largest.width, most)
    stamp_height = side // STAMP_SHARE
    font = ImageFont.load_default(side / STAMP_LETTERS)
    times = [each.images for each in facts]
    drawn, frame = -1, np.empty(0, np.uint8)
    for time in np.linspace(times[0], times[-1], count) if count > 1 else [times[-1]]:
        if (shown := bisect_right(times, time) - 1) != drawn:
            drawn, picture = shown, Image.new("RGB", (side, side + stamp_height))
            with Image.open(paths[drawn]) as grid:
                picture.paste(grid.resize((side, side), Image.Resampling.NEAREST))
            place = side / 2, side + stamp_height / 2
            ImageDraw.Draw(picture).text(place, facts[drawn].stamp, fill="white", font=font, anchor="mm")
            frame = np.asarray(picture)
        yield frame


def grids_of_run(run_dir: Path) -> dict[Path, GridFacts]:
    """The stored grids of a run, oldest first, and their GridFacts; all have as many columns as the newest grid.

    Raises UserError if the run has stored no grids.
    """
    folder = run_dir / "samples" / FOLDER
    found = stored_grids(folder)
    if not found:
        raise UserError(f"{folder} has no grids that a run has stored.", "Set run= to the run directory of a training.")
    columns = [*found.values()][-1].columns
    return {path: facts for path, facts in found.items() if facts.columns == columns}
