"""`pggan timelapse`: a film of a whole training, at one size."""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from pggan.checkpoints.generator_file import load_generator
from pggan.checkpoints.read import checkpoints_of_run
from pggan.config import Enlargement, TimeAxis, TimelapseConfig
from pggan.config.parse import parse_grid
from pggan.core.devices import choose_device, set_threads
from pggan.core.errors import UserError
from pggan.core.next_command import next_command
from pggan.sampling.generate import draw_seeds
from pggan.sampling.output.film import ANIMATED, Film, automatic_zoom, require_encoder, require_size, to_rgb
from pggan.sampling.output.film_file import save_film
from pggan.sampling.output.images import Pixels, check_output, enlarge, enlarge_smoothly, grid
from pggan.sampling.output.output_path import next_output
from pggan.sampling.output.stored_grid import FOLDER, GridFacts, grids_of_run, read_facts, read_tiles, stored_grids

STAMP_SHARE = 16  # of the height, below the images
MIN_STAMP = 20  # pixels


@dataclass(frozen=True)
class Shot:
    """The images at one time of a training: `tiles` gives them, uint8 [N, R, R, C], R at most `side`."""

    facts: GridFacts
    side: int
    tiles: Callable[[], Pixels]

    @property
    def stamp(self) -> str:
        """The line that is written below them: images shown, resolution and time."""
        facts = self.facts
        time = f"{facts.hours:.2f} h" if facts.hours >= 1 else f"{60 * facts.hours:.1f} min"
        return f"{facts.images:,} images   {facts.resolution}x{facts.resolution}   {time}"


def run(config: TimelapseConfig) -> int:
    """Write the film; returns the exit code."""
    target = Path(config.out) if config.out is not None else next_output(config.run, "timelapse", ".webp")
    require_encoder(target)
    shots = milestone_shots(config) if config.milestones else stored_shots(config.run)
    columns, side = shots[-1].facts.columns, max(shot.side for shot in shots)
    rows = len(shots[-1].tiles()) // columns
    zoom = config.zoom or automatic_zoom(columns * side, rows * side)
    width, height = columns * side * zoom, rows * side * zoom
    stamp_height = max(height // STAMP_SHARE, MIN_STAMP)
    out = check_output(str(target), ANIMATED)
    require_size(out, width, height + stamp_height)
    scale = enlarge_smoothly if config.scaling is Enlargement.smooth else enlarge
    font = font_for([shot.stamp for shot in shots], width, stamp_height)
    shown = shots_of_frames(shots, max(round(config.seconds * config.fps), 1), config.axis)

    def draw(indices: Sequence[int]) -> Iterator[Pixels]:
        drawn, frame = -1, np.empty(0, np.uint8)
        for index in indices:
            if shown[index] != drawn:
                drawn = shown[index]
                tiles = shots[drawn].tiles()
                picture = to_rgb(grid(scale(tiles, side * zoom // tiles.shape[1]), columns))
                frame = np.concatenate([picture, draw_stamp(shots[drawn].stamp, width, stamp_height, font)])
            yield frame

    film = Film(len(shown), config.fps, draw)
    save_film(film, out)
    print(f"{out}: {len(shown)} frames of {len(set(shown))} times, {shots[0].stamp} to {shots[-1].stamp}")
    print(next_command("evaluate", "checkpoint=all", run=config.run))
    return 0


def stored_shots(run_dir: str) -> list[Shot]:
    """The grids that a run has stored, the oldest first; raises UserError if there are none."""
    grids = grids_of_run(Path(run_dir)).items()
    shots = [Shot(facts, side_of(path, facts), partial(read_tiles, path, facts)) for path, facts in grids]
    return [shot for shot in shots if shot.facts.columns == shots[-1].facts.columns]  # one layout


def side_of(path: Path, facts: GridFacts) -> int:
    """The side in pixels of the images in a stored grid."""
    with Image.open(path) as picture:
        return picture.width // facts.columns


def milestone_shots(config: TimelapseConfig) -> list[Shot]:
    """The checkpoints that are left, the oldest first; raises UserError if there are none.

    Hours are those of the last grid stored before each of them.
    """
    checkpoints = checkpoints_of_run(config.run)
    columns, rows = parse_grid(config.grid, "grid")
    set_threads(config.threads)
    device = choose_device(config.device, "device")
    facts_of_grids = map(read_facts, stored_grids(Path(config.run) / "samples" / FOLDER).values())
    known = [facts for facts in facts_of_grids if facts is not None]
    if config.axis is TimeAxis.hours and not known:
        raise UserError(f"axis=hours: run={config.run} has not stored the hours.", "Take axis=images.")

    def shot_of(path: Path) -> Shot:
        loaded = load_generator(str(path), device)
        hours = max((facts.hours for facts in known if facts.images <= loaded.images), default=0.0)
        facts = GridFacts(loaded.images, loaded.resolution, loaded.alpha, hours, columns)
        return Shot(facts, loaded.resolution, partial(draw_checkpoint, path, device, columns * rows))

    return [shot_of(path) for path in checkpoints]


def draw_checkpoint(path: Path, device: torch.device, count: int) -> Pixels:
    """The images uint8 [N, R, R, C] of the first N seeds, at the stage of a checkpoint."""
    loaded = load_generator(str(path), device)
    return draw_seeds(loaded.network, count, loaded.resolution, loaded.alpha)


def shots_of_frames(shots: list[Shot], frames: int, axis: TimeAxis) -> list[int]:
    """For each frame the number of the shot it shows: the last one at its time, of which equal parts pass evenly."""
    times = [float(getattr(shot.facts, axis.value)) for shot in shots]
    if times[0] == times[-1]:  # nothing passes: all of them one after the other
        times = [float(number) for number in range(len(shots))]
    frame_times = np.linspace(times[0], times[-1], frames).tolist() if frames > 1 else [times[-1]]
    return [bisect_right(times, time) - 1 for time in frame_times]


def font_for(lines: list[str], width: int, height: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The largest font whose `lines` fit into `width` x `height` pixels."""
    size = max(height * 2 // 3, 2)
    while size > 2 and max(ImageFont.load_default(size).getlength(line) for line in lines) > width - size:
        size -= 1
    return ImageFont.load_default(size)


def draw_stamp(text: str, width: int, height: int, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> Pixels:
    """A line of white text on black, uint8 [height, width, 3]."""
    picture = Image.new("RGB", (width, height))
    ImageDraw.Draw(picture).text((width / 2, height / 2), text, fill="white", font=font, anchor="mm")
    return np.asarray(picture)
