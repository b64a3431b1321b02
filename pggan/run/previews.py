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
from pggan.sampling.images import Pixels, contact_sheet, save_png
from pggan.sampling.latents import seed_latents

BATCH_SIZE = 8  # of generated images: at 1024x1024, each takes hundreds of megabytes


class Previews:
    """Grids of one run, as PNG files in `folder`, each also given to `show` with its tag and image count."""

    def __init__(
        self, config: MonitorConfig, schedule: Schedule, folder: Path, show: Callable[[str, Pixels, int], None]
    ) -> None:
        self.columns, self.rows = parse_grid(config.grid, "monitor.grid")
        self.schedule, self.folder, self.show = schedule, folder, show

    def show_reals(self, pyramid: ImagePyramid) -> None:
        """Write reals.png: the first images of the set, at the final resolution."""
        indices = np.arange(min(self.columns * self.rows, pyramid.images))
        self._show("reals", pyramid.read(self.schedule.final_resolution, indices), "reals.png", 0)

    def show_fakes(self, g_ema: Generator, phase: Phase, images: int) -> None:
        """Write fakes-<images>.png: the averaged generator's images of seeds 0, 1, 2 …, the same ones every time."""
        count, labels = self.columns * self.rows, g_ema.architecture.labels
        latents = seed_latents(list(range(count)), g_ema.architecture.latent_size)
        classes = torch.arange(count) % labels if labels else None
        settings = RenderSettings(phase.resolution, phase.alpha)
        fakes = draw_in_batches(g_ema, latents, classes, settings, BATCH_SIZE)
        self._show("fakes", fakes, f"fakes-{images:09d}.png", images)

    def _show(self, tag: str, images: Pixels, file: str, count: int) -> None:
        picture = contact_sheet(images, self.columns, self.schedule.final_resolution)
        save_png(picture, self.folder / file)
        self.show(tag, picture, count)
