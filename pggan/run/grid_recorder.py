"""The small grids that a run stores on its way, from which `pggan timelapse` makes a film."""

import time
from pathlib import Path

from pggan.core.atomic_io import clean_partials, make_directory
from pggan.core.intervals import is_due
from pggan.core.schedule import Phase, Schedule
from pggan.networks.networks import Generator
from pggan.sampling.generate import draw_seeds
from pggan.sampling.images import grid, shrink
from pggan.sampling.timelapse import GridFacts, read_facts, save_grid, stored_grids

MAX_GRIDS = 300  # grids of a whole run: ten seconds of film without one shown twice
MIN_GRIDS = 100  # grids of a whole run that has as many updates: with fewer, a film jerks
# Updates per grid, where that gives neither too many nor too few.  A grid takes a fifth of the processor time of an
# update (avatars_32 on two cores), so all of them take little more than half a per cent.
UPDATES = 36
MAX_PIXELS = 2**16  # of a grid: less than 200 KB in three channels, even of noise
MAX_TILE = 128  # pixels: larger images are averaged down, so that four of them have room


def interval_of(schedule: Schedule) -> int:
    """Images between two stored grids."""
    count = min(max(sum(schedule.steps()) // UPDATES, MIN_GRIDS), MAX_GRIDS)
    return -(-schedule.total // count)


def layout(final_resolution: int) -> tuple[int, int]:
    """Columns, as many as rows, of all grids of a run: 4, or 2 of large images; and the largest side of an image."""
    side = min(final_resolution, MAX_TILE)
    return 4 if 16 * side**2 <= MAX_PIXELS else 2, side


class GridRecorder:
    """Stores a grid of the averaged generator's images of the same seeds, MIN_GRIDS to MAX_GRIDS times in a run."""

    def __init__(self, schedule: Schedule, folder: Path, images: int) -> None:
        self.schedule, self.folder, self.interval = schedule, folder, interval_of(schedule)
        self.columns, self.side = layout(schedule.final_resolution)
        make_directory(folder)
        clean_partials(folder)
        self.restart(images)
        # The clock of a resumed run starts at its last grid: it does not count what was trained since then and saved.
        last = [read_facts(path) for path in [*stored_grids(folder).values()][-1:]]
        self._began = time.monotonic() - 3600 * sum(facts.hours for facts in last if facts is not None)

    def restart(self, images: int) -> None:
        """Continue from `images`: grids beyond it are dropped."""
        for count, path in stored_grids(self.folder).items():
            if count > images:
                path.unlink()

    def is_due(self, before: int, after: int) -> bool:
        """Whether the step from image count `before` to `after` is followed by a grid; that to the end always is."""
        return after >= self.schedule.total or is_due(self.interval, before, after)

    def record(self, g_ema: Generator, phase: Phase, images: int) -> None:
        """Draw and store a grid of `images` shown."""
        fakes = draw_seeds(g_ema, self.columns**2, phase.resolution, phase.alpha)
        small = shrink(fakes, max(phase.resolution // self.side, 1))
        hours = (time.monotonic() - self._began) / 3600
        facts = GridFacts(images, phase.resolution, phase.alpha, round(hours, 6), self.columns)
        save_grid(grid(small, self.columns), facts, self.folder)
