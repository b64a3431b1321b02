"""The pictures that a run makes of itself: grids, the frames of its film, how varied its faces are, the projector.

N images, R resolution, C channels, Z latent size, H features.
"""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from pggan.core.atomic_io import clean_partials, make_directory
from pggan.core.schedule import Phase, Schedule
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import to_float
from pggan.metrics.extractors import pixel_extractor
from pggan.metrics.features import nearest_others
from pggan.metrics.images import RealImages, to_device
from pggan.networks.networks import Discriminator, Generator
from pggan.ops.elementwise import pixel_norm
from pggan.optim.state import State
from pggan.run.tensorboard import Board
from pggan.sampling.generate import draw_seeds, seed_latents
from pggan.sampling.images import (
    MIN_TILE,
    GridFacts,
    Pixels,
    contact_sheet,
    grid,
    read_facts,
    save_grid,
    shrink,
    stored_grids,
)

MAX_GRID = 2**22  # pixels: about a second of encoding, and more than a screen shows
MAX_STORED = 300  # stored grids of a whole run: ten seconds of film without one shown twice
MIN_STORED = 100  # of a run that has as many updates: with fewer, a film jerks
# Updates per stored grid, where that gives neither too many nor too few.  A grid takes a fifth of the processor time of
# an update (avatars_32 on two cores), so all of them take little more than half a per cent.
UPDATES = 36
MAX_STORED_PIXELS = 2**16  # of a stored grid: less than 200 KB in three channels, even of noise
MAX_TILE = 128  # pixels: larger images are averaged down, so that four of them have room
COMPARED = 32  # images on each side of a diversity, or as many as there are reals
MAX_POINTS, MAX_POINT_PIXELS = 256, 2**24  # of the projector: 256 faces of 256x256, 16 of 1024x1024
POINT_TILE = 32  # pixels of a point's picture: 256 of them are a few hundred kilobytes
MAX_PIXELS_AT_ONCE, MIN_BATCH, MAX_BATCH = 2**19, 8, 128  # 8 images of 256x256; whole groups, whose members D compares


class Previews:
    """Grids of one run, each given to `show`: its tag, pixels, the PNG file in `folder` if any, the image count."""

    def __init__(
        self,
        layout: tuple[int, int],
        final_resolution: int,
        folder: Path,
        show: Callable[[str, Pixels, Path | None, int], None],
    ) -> None:
        """Args: layout: columns and rows, fewer where a grid would have more than MAX_GRID pixels."""
        self.layout, self.final_resolution, self.folder, self.show = layout, final_resolution, folder, show

    def shape(self, resolution: int) -> tuple[int, int]:
        """Columns and rows of the grids at `resolution`."""
        columns, rows = self.layout
        side = max(resolution, min(self.final_resolution, MIN_TILE))
        while columns * rows > max(MAX_GRID // side**2, 1):
            columns, rows = (columns - 1, rows) if columns >= rows else (columns, rows - 1)
        return columns, rows

    def show_final_reals(self, pyramid: ImagePyramid) -> None:
        """Show reals.png: the first images of the set, at the final resolution."""
        self._show_reals("images/final_reals", pyramid, self.final_resolution, self.folder / "reals.png", 0)

    def show_reals(self, pyramid: ImagePyramid, resolution: int, images: int) -> None:
        """Show the same reals at the `resolution` in which training continues after `images`."""
        # The point of the first image of the level: a run that resumes from `images` shows it again, once.
        self._show_reals("images/reals", pyramid, resolution, None, images + 1)

    def _show_reals(self, tag: str, pyramid: ImagePyramid, resolution: int, file: Path | None, images: int) -> None:
        columns, rows = self.shape(resolution)
        reals = pyramid.read(resolution, np.arange(min(columns * rows, pyramid.images)))
        self.show(tag, contact_sheet(reals, columns, self.final_resolution), file, images)

    def show_fakes(self, g: Generator, g_ema: Generator, phase: Phase, images: int) -> None:
        """Show images of seeds 0, 1, 2 …, the same ones every time: of `g`, and of `g_ema` as fakes-<images>.png."""
        columns, rows = self.shape(phase.resolution)
        file = self.folder / f"fakes-{images:09d}.png"
        for tag, network, path in (("images/fakes", g, None), ("images/averaged_fakes", g_ema, file)):
            fakes = draw_seeds(network, columns * rows, phase.resolution, phase.alpha)
            self.show(tag, contact_sheet(fakes, columns, self.final_resolution), path, images)


class GridRecorder:
    """Stores a grid of the averaged generator's images of the same seeds, 100 to 300 times in a run, for a film."""

    def __init__(self, schedule: Schedule, folder: Path, images: int) -> None:
        """Continue from `images`: grids beyond it are dropped."""
        self.folder, self.interval = folder, interval_of(schedule)
        # Columns, as many as rows, of all grids of a run: 4, or 2 of large images.
        self.side = min(schedule.final_resolution, MAX_TILE)
        self.columns = 4 if 16 * self.side**2 <= MAX_STORED_PIXELS else 2
        make_directory(folder)
        clean_partials(folder)
        stored = stored_grids(folder)
        for path in [path for count, path in stored.items() if count > images]:
            path.unlink()
        # The clock of a resumed run starts at its last grid: it does not count what was trained since then and saved.
        last = [read_facts(path) for count, path in stored.items() if count <= images][-1:]
        self._began = time.monotonic() - 3600 * sum(facts.hours for facts in last if facts is not None)

    def record(self, g_ema: Generator, phase: Phase, images: int) -> None:
        """Draw and store a grid of `images` shown."""
        fakes = draw_seeds(g_ema, self.columns**2, phase.resolution, phase.alpha)
        small = shrink(fakes, max(phase.resolution // self.side, 1))
        hours = (time.monotonic() - self._began) / 3600
        facts = GridFacts(images, phase.resolution, phase.alpha, round(hours, 6), self.columns)
        save_grid(grid(small, self.columns), facts, self.folder)


def interval_of(schedule: Schedule) -> int:
    """Images between two stored grids."""
    count = min(max(sum(schedule.steps()) // UPDATES, MIN_STORED), MAX_STORED)
    return -(-schedule.total // count)


def relative_diversity(g: Generator, phase: Phase, pyramid: ImagePyramid) -> float | None:
    """The mean distance from a fake to the nearest other fake, divided by the same of reals; about 1 of a perfect G.

    Distances are between pixels, averaged to 32x32 at most.  Fakes that are copies of a few images have 0, even where
    these few differ as much as reals do.  None where the reals are too few, or all the same.
    """
    count = min(COMPARED, pyramid.images)
    spread = _mean_nearest(RealImages(pyramid, phase.resolution).read(range(count)))
    if spread == 0:
        return None
    return _mean_nearest(draw_seeds(g, count, phase.resolution, phase.alpha)) / spread


def _mean_nearest(images: Pixels) -> float:
    """The mean distance from each of images [N, R, R, C] to the nearest other one; 0 of a single one."""
    if len(images) < 2:
        return 0.0
    features = pixel_extractor().features(to_device(images, torch.device("cpu")))
    return float(nearest_others(features).mean())


def show_projector(board: Board, state: State, pyramid: ImagePyramid, phase: Phase) -> None:
    """Show averaged fakes of seeds 0, 1, 2 … as points: by their latents, and beside reals by what D sees in them."""
    resolution = phase.resolution
    count = min(MAX_POINTS, MAX_POINT_PIXELS // resolution**2, pyramid.images)
    batch = min(max(MAX_PIXELS_AT_ONCE // resolution**2, MIN_BATCH), MAX_BATCH)
    fakes = draw_seeds(state.g_ema, count, resolution, phase.alpha, batch_size=batch)
    images = np.concatenate([fakes, pyramid.read(resolution, np.arange(count))])
    d = state.d.network
    assert isinstance(d, Discriminator), "new_state makes it"
    features, scores = features_and_scores(d, images, phase, batch)
    about = [[f"seed {seed}", "fake", scores[seed]] for seed in range(count)]
    about += [[f"real {number}", "real", scores[count + number]] for number in range(count)]
    small = torch.from_numpy(shrink(images, max(resolution // POINT_TILE, 1))).permute(0, 3, 1, 2) / 255
    small = small[:, :3] if small.shape[1] in (3, 4) else small[:, :1].expand(-1, 3, -1, -1)
    latents = pixel_norm(seed_latents(list(range(count)), state.g_ema.architecture.latent_size))
    for tag, points in (("latents", latents), ("features_of_D", features)):
        rows, faces = about[: len(points)], small[: len(points)]
        board.add_embedding(points, rows, faces, state.images, tag, metadata_header=["name", "kind", "score"])


@torch.no_grad()
def features_and_scores(
    network: Discriminator, images: Pixels, phase: Phase, size: int
) -> tuple[NDArray[np.float32], list[str]]:
    """D's last features [N, H] of `images` [N, R, R, C], in batches of `size`, and its scores [N] as text."""
    device, features = network.weights[0].device, list[Tensor]()
    last = network.last_layer(phase.resolution)
    hook = last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].float().cpu()))
    scores: list[Tensor] = []
    try:
        for batch in np.array_split(images, -(-len(images) // size)):
            pixels = to_float(torch.from_numpy(batch).to(device))
            padded = F.pad(pixels, (0, 0, 0, 0, 0, 0, 0, size - len(batch)), value=0.0)  # to whole groups
            score, _ = network(padded, phase.resolution, phase.alpha)
            scores.append(score[: len(batch)].cpu())
            features[-1] = features[-1][: len(batch)]
    finally:
        hook.remove()
    return torch.cat(features).numpy(), [f"{score:.3f}" for score in torch.cat(scores).tolist()]
