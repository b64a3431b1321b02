"""Numbers of a run's health, besides those of its steps: how varied the fakes are, and how surely D knows the reals."""

import torch

from pggan.core.intervals import is_due
from pggan.core.schedule import Phase
from pggan.data.pyramid import ImagePyramid
from pggan.losses.base import Loss
from pggan.metrics.extractors import pixel_extractor
from pggan.metrics.features import nearest_others
from pggan.metrics.images import RealImages, to_device
from pggan.networks.networks import Generator
from pggan.optim.state import State
from pggan.run.alarms import DIVERSITY, REALS_SIGN
from pggan.run.report import Scores
from pggan.run.run_dir import RunContext
from pggan.sampling.generate import draw_seeds
from pggan.sampling.images import Pixels

COUNT = 32  # images on each side of a diversity, or as many as there are reals


class Health:
    """The health of one run; for rank 0."""

    def __init__(self, run: RunContext, loss: Loss, images: int) -> None:
        """Args: images: shown already."""
        self.pyramid, self.every, self.loss = run.pyramid, run.config.monitor.grid_images, loss
        self.restart(images)

    def restart(self, images: int) -> None:
        """Continue from `images`: the next grid is the first one beyond them."""
        self._ticked_at = images

    def at_tick(self, state: State, phase: Phase, scores: Scores) -> dict[str, float]:
        """The scalars of a tick by tag; the diversity of fakes only if a grid was due since the last one."""
        found = {}
        if self.loss.scores_are_log_odds and "scores/reals" in scores:
            reals, fakes = (torch.from_numpy(scores[f"scores/{kind}"]) for kind in ("reals", "fakes"))
            found[REALS_SIGN] = float(self.loss.signs(reals, fakes).mean())
        before, self._ticked_at = self._ticked_at, state.images
        if is_due(self.every, before, state.images):
            g = state.g.network
            assert isinstance(g, Generator), "new_state makes it"
            diversity = relative_diversity(g, phase, self.pyramid)
            found |= {} if diversity is None else {DIVERSITY: diversity}
        return found


def relative_diversity(g: Generator, phase: Phase, pyramid: ImagePyramid) -> float | None:
    """The mean distance from a fake to the nearest other fake, divided by that of reals; about 1 of a perfect G.

    Distances are those of pixels, averaged to 32x32 at most.  Fakes that are copies of a few images have 0, even where
    these few differ as much as reals do.  None where the reals are too few, or all the same.
    """
    count = min(COUNT, pyramid.images)
    spread = mean_nearest(RealImages(pyramid, phase.resolution).read(range(count)))
    if spread == 0:
        return None
    return mean_nearest(draw_seeds(g, count, phase.resolution, phase.alpha)) / spread


def mean_nearest(images: Pixels) -> float:
    """The mean distance from each of images [N, R, R, C] to the nearest other one; 0 of a single one."""
    if len(images) < 2:
        return 0.0
    features = pixel_extractor().features(to_device(images, torch.device("cpu")))
    return float(nearest_others(features).mean())
