"""The pictures that a run makes of itself: a grid of reals, and fakes of the same latents throughout the training."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from pggan.config import MonitorConfig
from pggan.config.notation import parse_grid
from pggan.core.schedule import Phase, Schedule
from pggan.data.format.pyramid import ImagePyramid
from pggan.networks.networks import Generator
from pggan.sampling.generate import RenderSettings, draw_in_batches
from pggan.sampling.latents.latents import seed_latents
from pggan.sampling.output.images import SMALLEST_TILE, Pixels, contact_sheet

BATCH_SIZE = 8  # of generated images: at 1024x1024, each takes hundreds of megabytes
LARGEST_GRID = 2**22  # pixels: about a second of encoding, and more than a screen shows


def grid_shape(config: MonitorConfig, resolution: int, final_resolution: int) -> tuple[int, int]:
    """Columns and rows of the grids at `resolution`: as configured, fewer where that is more than LARGEST_GRID."""
    columns, rows = parse_grid(config.grid, "monitor.grid")
    side = max(resolution, min(final_resolution, SMALLEST_TILE))
    while columns * rows > max(LARGEST_GRID // side**2, 1):
        columns, rows = (columns - 1, rows) if columns >= rows else (columns, rows - 1)
    return columns, rows


class Previews:
    """Grids of one run, each given to `show`: its tag, pixels, the PNG file in `folder` to write, the image count."""

    def __init__(
        self, config: MonitorConfig, schedule: Schedule, folder: Path, show: Callable[[str, Pixels, Path, int], None]
    ) -> None:
        self.config, self.schedule, self.folder, self.show = config, schedule, folder, show

    def show_reals(self, pyramid: ImagePyramid) -> None:
        """Show reals.png: the first images of the set, at the final resolution."""
        resolution = self.schedule.final_resolution
        columns, rows = grid_shape(self.config, resolution, resolution)
        indices = np.arange(min(columns * rows, pyramid.images))
        self._show("reals", pyramid.read(resolution, indices), columns, "reals.png", 0)

    def show_fakes(self, g_ema: Generator, phase: Phase, images: int) -> None:
        """Show fakes-<images>.png: the averaged generator's images of seeds 0, 1, 2 …, the same ones every time."""
        columns, rows = grid_shape(self.config, phase.resolution, self.schedule.final_resolution)
        count, labels = columns * rows, g_ema.architecture.labels
        latents = seed_latents(list(range(count)), g_ema.architecture.latent_size)
        classes = torch.arange(count) % labels if labels else None
        settings = RenderSettings(phase.resolution, phase.alpha)
        fakes = draw_in_batches(g_ema, latents, classes, settings, BATCH_SIZE)
        self._show("fakes", fakes, columns, f"fakes-{images:09d}.png", images)

    def _show(self, tag: str, images: Pixels, columns: int, file: str, count: int) -> None:
        self.show(tag, contact_sheet(images, columns, self.schedule.final_resolution), self.folder / file, count)
