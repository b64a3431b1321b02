"""`pggan timelapse`: a film of the small grids that a run stores on its way.  Without torch."""

from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from pggan.config.commands import TimelapseConfig
from pggan.core.errors import UserError
from pggan.core.text import next_command
from pggan.sampling.files import ANIMATED, check_output, film_zoom, output_path, save_film
from pggan.sampling.images import FOLDER, GridFacts, Pixels, read_facts, stored_grids

STAMP_SHARE = 16  # of the height, below the images
MIN_STAMP = 20  # pixels


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


def draw_stamp(text: str, width: int, height: int, longest: str) -> Pixels:
    """A line of white text on black, uint8 [height, width, 3], as large as lets the `longest` one fit, too."""
    length = ImageFont.load_default(100).getlength(longest) / 100  # in sizes of the font
    font = ImageFont.load_default(min(height * 2 / 3, width / (length + 1)))
    picture = Image.new("RGB", (width, height))
    ImageDraw.Draw(picture).text((width / 2, height / 2), text, fill="white", font=font, anchor="mm")
    return np.asarray(picture)


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
