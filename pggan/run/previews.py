"""The pictures that a run makes of itself: reals of every level, and fakes of the same latents throughout training."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from pggan.config import ReportConfig
from pggan.config.parse import parse_grid
from pggan.core.schedule import Phase, Schedule
from pggan.data.pyramid import ImagePyramid
from pggan.networks.networks import Generator
from pggan.sampling.generate import draw_seeds
from pggan.sampling.images import MIN_TILE, Pixels, contact_sheet

MAX_GRID = 2**22  # pixels: about a second of encoding, and more than a screen shows


def grid_shape(config: ReportConfig, resolution: int, final_resolution: int) -> tuple[int, int]:
    """Columns and rows of the grids at `resolution`: as configured, fewer where that is more than MAX_GRID."""
    columns, rows = parse_grid(config.grid, "monitor.grid")
    side = max(resolution, min(final_resolution, MIN_TILE))
    while columns * rows > max(MAX_GRID // side**2, 1):
        columns, rows = (columns - 1, rows) if columns >= rows else (columns, rows - 1)
    return columns, rows


class Previews:
    """Grids of one run, each given to `show`: its tag, pixels, the PNG file in `folder` if any, the image count."""

    def __init__(
        self,
        config: ReportConfig,
        schedule: Schedule,
        folder: Path,
        show: Callable[[str, Pixels, Path | None, int], None],
    ) -> None:
        self.config, self.schedule, self.folder, self.show = config, schedule, folder, show

    def show_final_reals(self, pyramid: ImagePyramid) -> None:
        """Show reals.png: the first images of the set, at the final resolution."""
        self._show_reals("images/final_reals", pyramid, self.schedule.final_resolution, self.folder / "reals.png", 0)

    def show_reals(self, pyramid: ImagePyramid, resolution: int, images: int) -> None:
        """Show the same reals at the `resolution` in which training continues after `images`."""
        # The point of the first image of the level: a run that resumes from `images` shows it again, once.
        self._show_reals("images/reals", pyramid, resolution, None, images + 1)

    def _show_reals(self, tag: str, pyramid: ImagePyramid, resolution: int, file: Path | None, images: int) -> None:
        columns, rows = grid_shape(self.config, resolution, self.schedule.final_resolution)
        reals = pyramid.read(resolution, np.arange(min(columns * rows, pyramid.images)))
        self.show(tag, contact_sheet(reals, columns, self.schedule.final_resolution), file, images)

    def show_fakes(self, g: Generator, g_ema: Generator, phase: Phase, images: int) -> None:
        """Show images of seeds 0, 1, 2 …, the same ones every time: of `g`, and of `g_ema` as fakes-<images>.png."""
        columns, rows = grid_shape(self.config, phase.resolution, self.schedule.final_resolution)
        file = self.folder / f"fakes-{images:09d}.png"
        for tag, network, path in (("images/fakes", g, None), ("images/averaged_fakes", g_ema, file)):
            fakes = draw_seeds(network, columns * rows, phase.resolution, phase.alpha)
            self.show(tag, contact_sheet(fakes, columns, self.schedule.final_resolution), path, images)
