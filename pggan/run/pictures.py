"""The pictures that a run makes of itself: grids, the frames of its film, how varied its faces are, the projector.

N images, R resolution, C channels, Z latent size, H features.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from pggan.core.atomic_io import clean_partials, make_directory
from pggan.core.schedule import Phase, Schedule, is_due
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import to_float
from pggan.networks.networks import Discriminator, Generator
from pggan.ops.elementwise import pixel_norm
from pggan.optim.state import State
from pggan.run.health import DIVERSITY
from pggan.run.report import Reporter
from pggan.sampling.generate import draw_seeds, seed_latents
from pggan.sampling.images import (
    FOLDER,
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
COMPARED_SIDE = 32  # pixels to which they are averaged
MAX_POINTS, MAX_POINT_PIXELS = 256, 2**24  # of the projector: 256 faces of 256x256, 16 of 1024x1024
POINT_TILE = 32  # pixels of a point's picture: 256 of them are a few hundred kilobytes
D_BATCH = 8  # images that D sees at once for the projector


@dataclass(frozen=True)
class Step:
    """A step that was taken, from image count `before` to `images`; at the beginning of a run, the step to 0."""

    phase: Phase
    before: int
    images: int
    is_last: bool
    is_new_level: bool  # the first one of its resolution

    def reaches(self, every: int) -> bool:
        """Whether it reaches a multiple of `every`, or the end."""
        return self.is_last or is_due(every, self.before, self.images)


class Pictures:
    """The pictures of one run, drawn on rank 0 after the steps at which each is due."""

    def __init__(
        self,
        run_dir: Path,
        schedule: Schedule,
        state: State,
        pyramid: ImagePyramid,
        reporter: Reporter,
        *,
        layout: tuple[int, int],
        grid_images: int,
    ) -> None:
        """Continue from the images of `state`: stored grids beyond it are dropped.

        Args: layout: columns and rows of a grid, fewer of large images; grid_images: between two grids.
        """
        self.folder, self.film, self.layout = run_dir / "samples", run_dir / "samples" / FOLDER, layout
        self.state, self.pyramid, self.reporter = state, pyramid, reporter
        self.final, self.grid_images = schedule.final_resolution, grid_images
        self.measured: dict[str, float] = {}  # for the next tick
        count = min(max(sum(schedule.steps()) // UPDATES, MIN_STORED), MAX_STORED)
        self.film_images = -(-schedule.total // count)  # between two stored grids
        # Columns, as many as rows, of all stored grids of a run: 4, or 2 of large images.
        self.tile = min(self.final, MAX_TILE)
        self.columns = 4 if 16 * self.tile**2 <= MAX_STORED_PIXELS else 2
        make_directory(self.film)
        clean_partials(self.film)
        stored = stored_grids(self.film)
        for path in [path for count, path in stored.items() if count > state.images]:
            path.unlink()
        # The clock of a resumed run starts at its last grid: it does not count what was trained since then and saved.
        last = [read_facts(path) for count, path in stored.items() if count <= state.images][-1:]
        self._began = time.monotonic() - 3600 * sum(facts.hours for facts in last if facts is not None)

    def __call__(self, step: Step) -> None:
        """Draw what is due, but for what other programs leave too little of the device's memory."""
        is_first = step.images == 0
        if is_first:
            self._show_reals("images/final_reals", self.final, 0, self.folder / "reals.png")
        if step.is_new_level:
            # The point of a level's first image: a run that resumes from the image before it shows it again, once.
            self._show_reals("images/reals", step.phase.resolution, step.before + 1)
        for what, due, draw in (
            ("pictures", is_first or step.reaches(self.grid_images), self._show_fakes),
            ("measure of diversity", is_due(self.grid_images, step.before, step.images), self._measure_diversity),
            ("grid of the timelapse", is_first or step.reaches(self.film_images), self._store_grid),
            ("Projector", step.is_last, self._show_projector),
        ):
            try:
                if due:
                    draw(step.phase, step.images)
            except torch.OutOfMemoryError as error:
                torch.cuda.empty_cache()
                self.reporter.warn(f"No {what} at {step.images:,} images: {str(error).partition('. GPU')[0]}.")

    def _show_reals(self, tag: str, resolution: int, images: int, file: Path | None = None) -> None:
        """Show the first images of the set at a resolution."""
        columns, rows = grid_shape(self.layout, resolution, self.final)
        reals = self.pyramid.read(resolution, np.arange(min(columns * rows, self.pyramid.images)))
        self.reporter.picture(tag, contact_sheet(reals, columns, self.final), file, images)

    def _show_fakes(self, phase: Phase, images: int) -> None:
        """Show images of seeds 0, 1, 2 …, the same ones every time: of G, and of its average as fakes-….png."""
        columns, rows = grid_shape(self.layout, phase.resolution, self.final)
        file, g = self.folder / f"fakes-{images:09d}.png", generator_of(self.state)
        for tag, network, path in (("images/fakes", g, None), ("images/averaged_fakes", self.state.g_ema, file)):
            fakes = draw_seeds(network, columns * rows, phase.resolution, phase.alpha)
            self.reporter.picture(tag, contact_sheet(fakes, columns, self.final), path, images)

    def _measure_diversity(self, phase: Phase, images: int) -> None:
        diversity = relative_diversity(self.state, phase, self.pyramid)
        self.measured |= {} if diversity is None else {DIVERSITY: diversity}

    def _store_grid(self, phase: Phase, images: int) -> None:
        """Store a small grid of the averaged generator's images of the same seeds, for a film."""
        fakes = draw_seeds(self.state.g_ema, self.columns**2, phase.resolution, phase.alpha)
        small = shrink(fakes, max(phase.resolution // self.tile, 1))
        hours = (time.monotonic() - self._began) / 3600
        facts = GridFacts(images, phase.resolution, phase.alpha, round(hours, 6), self.columns)
        save_grid(grid(small, self.columns), facts, self.film)

    def _show_projector(self, phase: Phase, images: int) -> None:
        show_projector(self.reporter.board, self.pyramid, self.state, phase)


def grid_shape(layout: tuple[int, int], resolution: int, final_resolution: int) -> tuple[int, int]:
    """Columns and rows of a grid at `resolution`: as `layout` has them, or fewer, for at most MAX_GRID pixels."""
    columns, rows = layout
    side = max(resolution, min(final_resolution, MIN_TILE))
    while columns * rows > max(MAX_GRID // side**2, 1):
        columns, rows = (columns - 1, rows) if columns >= rows else (columns, rows - 1)
    return columns, rows


def generator_of(state: State) -> Generator:
    """The generator in training."""
    assert isinstance(state.g.network, Generator), "new_state makes it"
    return state.g.network


def relative_diversity(state: State, phase: Phase, pyramid: ImagePyramid) -> float | None:
    """The mean distance from a fake to the nearest other fake, divided by the same of reals; about 1 of a perfect G.

    Distances are between pixels, averaged to 32x32 at most.  Fakes that are copies of a few images have 0, even where
    these few differ as much as reals do.  None where the reals are too few, or all the same.
    """
    count, side = min(COMPARED, pyramid.images), min(phase.resolution, COMPARED_SIDE)
    some = np.random.default_rng(0).permutation(pyramid.images)[:count]  # neighbours in the set may be alike
    spread = _mean_nearest(pyramid.read(side, some))
    fakes = draw_seeds(generator_of(state), count, phase.resolution, phase.alpha)
    return _mean_nearest(shrink(fakes, phase.resolution // side)) / spread if spread else None


def _mean_nearest(images: Pixels) -> float:
    """The mean distance from each of images [N, R, R, C] to the nearest other one; 0 of a single one."""
    if len(images) < 2:
        return 0.0
    pixels = torch.from_numpy(images).flatten(1).double()
    distances = torch.cdist(pixels, pixels).fill_diagonal_(torch.inf)
    return float(distances.min(1).values.mean())


@torch.no_grad()
def show_projector(board: SummaryWriter, pyramid: ImagePyramid, state: State, phase: Phase) -> None:
    """Show averaged fakes of seeds 0, 1, 2 … as points: by their latents, and beside reals by what D sees in them."""
    side, architecture, d = phase.resolution, state.g_ema.architecture, state.d.network
    assert isinstance(d, Discriminator), "new_state makes it"
    group = architecture.stddev_group  # images that D compares with each other
    count = min(MAX_POINTS, MAX_POINT_PIXELS // side**2, pyramid.images) // group * group
    if count == 0:
        return
    images = torch.from_numpy(
        np.concatenate([draw_seeds(state.g_ema, count, side, phase.alpha), pyramid.read(side, np.arange(count))])
    )
    features, scores = list[Tensor](), list[float]()
    hook = d.last_layer(side).register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].float().cpu()))
    try:
        for batch in torch.split(images, max(D_BATCH // group, 1) * group):
            scores += d(to_float(batch.to(d.weights[0].device)), side, phase.alpha)[0].tolist()
    finally:
        hook.remove()
    kinds = [(kind, number) for kind in ("fake", "real") for number in range(count)]
    rows = [
        [f"{'seed' if kind == 'fake' else 'real'} {number}", kind, f"{score:.3f}"]
        for (kind, number), score in zip(kinds, scores, strict=True)
    ]
    faces = torch.from_numpy(shrink(images.numpy(), max(side // POINT_TILE, 1))).permute(0, 3, 1, 2) / 255
    faces = faces[:, :3] if faces.shape[1] in (3, 4) else faces[:, :1].expand(-1, 3, -1, -1)
    latents = pixel_norm(seed_latents(list(range(count)), architecture.latent_size))
    for tag, points in (("latents", latents), ("features_of_D", torch.cat(features))):
        board.add_embedding(
            points, rows[: len(points)], faces[: len(points)], state.images, tag, ["name", "kind", "score"]
        )
