"""Draws preview grids, frames for a film of the training, and points for TensorBoard's projector."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.tensorboard import SummaryWriter

from pggan.core.atomic_io import atomic_write, make_directory
from pggan.core.schedule import Phase, Schedule, is_due
from pggan.data.pyramid import ImagePyramid
from pggan.data.reals import to_float
from pggan.networks.networks import Discriminator, Generator
from pggan.optim.state import State
from pggan.run.console import FACES
from pggan.run.report import Reporter
from pggan.run.summary import FILM
from pggan.sampling.files import film_of, save_film
from pggan.sampling.generate import draw_seeds
from pggan.sampling.images import FOLDER, MIN_TILE, GridFacts, Pixels, contact_sheet, grid, grids_in, save_grid, shrink

MAX_GRID = 2**22  # maximum number of pixels in a preview grid; encoding a grid of this size takes a second
FILM_GRIDS = 200  # number of frames in the film of a run
FILM_SIDE, FILM_FPS = 256, 25  # side of the film in pixels, and frames per second
LEAST_SECONDS = 60  # runs of less than 60 seconds write no film, because writing a film takes a second
MAX_TILE = 128  # longest side in pixels of an image in a frame of the film
MAX_STORED_PIXELS = 2**16  # maximum number of pixels in a stored frame of the film; a frame's file is below 200 KB
MAX_POINTS, MAX_POINT_PIXELS = 256, 2**24  # maximum number of fakes in TensorBoard's projector, and of all their pixels
POINTS, POINTS_FILE = "projector", "projector_config.pbtxt"  # folder and file that TensorBoard's projector reads
POINT_TILE = 32  # side in pixels of an image in TensorBoard's projector


@dataclass(frozen=True)
class Step:
    """A training step; `before` and `images` count images shown before and after the step, both 0 before training."""

    phase: Phase
    before: int
    images: int
    is_last: bool

    def reaches(self, every: int) -> bool:
        """Whether this step reaches a multiple of `every` images, or is the last step."""
        return self.is_last or is_due(every, self.before, self.images)


class Pictures:
    """Draws the pictures of a run after each step at which a picture is due; exists only on rank 0."""

    def __init__(
        self,
        run_dir: Path,
        schedule: Schedule,
        state: State,
        pyramid: ImagePyramid,
        reporter: Reporter,
        *,
        layout: tuple[int, int],  # columns and rows of a preview grid
        grid_images: int,  # number of images shown between two preview grids
    ) -> None:
        self.folder, self.film, self.layout = run_dir / "samples", run_dir / "samples" / FOLDER, layout
        self.state, self.pyramid, self.reporter = state, pyramid, reporter
        self.final, self.grid_images = schedule.final_resolution, grid_images
        self.tile = min(self.final, MAX_TILE)
        self.columns = 4 if 16 * self.tile**2 <= MAX_STORED_PIXELS else 2  # a frame has 4x4 small or 2x2 large fakes
        make_directory(self.film)
        ahead = [path for path, facts in grids_in(self.film).items() if facts.images > state.images]
        ahead += [path for path in self.folder.glob(f"fakes-{'[0-9]' * 9}.png") if int(path.stem[-9:]) > state.images]
        for path in ahead:
            path.unlink()

    def __call__(self, step: Step) -> None:
        """Draw the pictures that are due after `step`; if the device is out of memory, warn and go on."""
        phase, images, is_first = step.phase, step.images, step.images == 0
        try:
            if is_first:
                self._show("final_reals", self._reals(self.final), 0, self.folder / "reals.png")
            if is_first or step.reaches(self.grid_images):
                self._show_grids(phase, images)
            if is_first or step.reaches(-(-self.reporter.course.schedule.total // FILM_GRIDS)):
                self._store_frame(phase, images)
            if is_first or step.is_last or (images >= phase.end and not phase.fading):
                show_projector(self.reporter.board, self.pyramid, self.state, phase)
        except torch.OutOfMemoryError as error:
            torch.cuda.empty_cache()
            self.reporter.warn(f"Pictures of {images:,} images are left out: {str(error).partition('. GPU')[0]}.")

    def write_film(self) -> None:
        """Write the film of the run's fakes, unless the run was shorter than a minute."""
        if (grids := grids_in(self.film)) and 3600 * self.reporter.hours >= LEAST_SECONDS:
            frames, mark = film_of(grids, len(grids), FILM_SIDE), self.reporter.mark(self.state.images)
            save_film(frames, len(grids), FILM_FPS, self.folder / FILM, mark)

    def _show_grids(self, phase: Phase, images: int) -> None:
        self._show("reals", self._reals(phase.resolution), images)
        g, file = self.state.g.network, self.folder / f"fakes-{images:09d}.png"
        assert isinstance(g, Generator), "new_state creates a Generator"
        for name, network, path in (("fakes", g, None), ("averaged_fakes", self.state.g_ema, file)):
            fakes = draw_seeds(network, self._grid_size(phase.resolution), phase.resolution, phase.alpha)
            self._show(name, fakes, images, path)
            self.reporter.console.faces(fakes)  # the averaged G's fakes come last, and stay in the live view

    def _grid_size(self, resolution: int) -> int:
        side = max(resolution, min(self.final, MIN_TILE))
        return min(self.layout[0] * self.layout[1], max(MAX_GRID // side**2, 1))

    def _reals(self, resolution: int) -> Pixels:
        return self.pyramid.read(resolution, np.arange(min(self._grid_size(resolution), self.pyramid.images)))

    def _show(self, name: str, pixels: Pixels, images: int, file: Path | None = None) -> None:
        columns = min(self.layout[0], len(pixels))
        self.reporter.picture(f"images/{name}", contact_sheet(pixels, columns, self.final), file, images)

    def _store_frame(self, phase: Phase, images: int) -> None:
        fakes = draw_seeds(self.state.g_ema, self.columns**2, phase.resolution, phase.alpha)
        if len(fakes) >= FACES:  # 4 fakes can't fill the terminal's row of 8 thumbnails, which stays as it is
            self.reporter.console.faces(fakes)
        small = shrink(fakes, max(phase.resolution // self.tile, 1))
        facts = GridFacts(images, phase.resolution, phase.alpha, round(self.reporter.hours, 6), self.columns)
        save_grid(grid(small, self.columns), facts, self.film, self.reporter.mark(images))


@torch.no_grad()
def show_projector(board: SummaryWriter, pyramid: ImagePyramid, state: State, phase: Phase) -> None:
    """Show the input features of D's last layer, for reals and fakes, in TensorBoard's projector."""
    side, d = phase.resolution, state.d.network
    if not isinstance(d, Discriminator):  # D is the user's own module
        return
    group = state.g_ema.architecture.stddev_group  # the minibatch standard deviation in D needs whole groups of images
    count = min(MAX_POINTS, MAX_POINT_PIXELS // side**2, pyramid.images) // group * group
    if count == 0:
        return
    fakes = draw_seeds(state.g_ema, count, side, phase.alpha)
    images = torch.from_numpy(np.concatenate([fakes, pyramid.read(side, np.arange(count))]))
    features: list[Tensor] = []
    last = d.get_submodule("score" if side >= d.features_from else "head.score")
    hook = last.register_forward_pre_hook(lambda _, inputs: features.append(inputs[0].float().cpu()))
    try:
        for batch in torch.split(images, group):
            d(to_float(batch.to(d.weights[0].device)), side, phase.alpha)
    finally:
        hook.remove()
    rows = [[f"{kind} {number}", kind] for kind in ("fake", "real") for number in range(count)]
    faces = torch.from_numpy(shrink(images.numpy(), max(side // POINT_TILE, 1))).permute(0, 3, 1, 2) / 255
    faces = faces[:, :3] if faces.shape[1] in (3, 4) else faces[:, :1].expand(-1, 3, -1, -1)
    step: Any = f"{POINTS}/{state.images:09d}"  # add_embedding stores the points in this folder of the run directory
    shutil.rmtree(Path(board.log_dir, step), ignore_errors=True)  # files of a command that was killed after this step
    board.add_embedding(torch.cat(features), rows, faces, step, "features_of_D", ["name", "kind"])
    # Each call adds an entry to POINTS_FILE. TensorBoard would show the oldest, so only the newest entry is kept.
    points = (file := Path(board.log_dir, POINTS_FILE)).read_text("utf-8").rpartition("embeddings {")
    with atomic_write(file) as temporary:
        temporary.write_text(points[1] + points[2], "utf-8")
