"""Alarms: what the scalars of a run say is going wrong, and what to do about it.

Each one is raised once, when it has held for some ticks in a row, and again when it had been gone for CLEAR_TICKS.
"""

import math
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, median

from pggan.augmentation.ada import MAX_P
from pggan.checkpoints.read import best_of, checkpoints_of
from pggan.losses.base import Loss
from pggan.run.report import COUNTED, PEAK, PEAKED

Scalars = Mapping[str, float]

CLEAR_TICKS = 5
SPIKE_FACTOR = 100  # times the recent median of a gradient norm; growth and restarts stay far below
SPIKE_TICKS = 10  # whose median it is
# ADA aims at a mean sign of 0.6 (Karras et al. 2020, section 3), and in avatars_32 it stays below 0.67 until the rates
# fall.  At 0.8, D is wrong about one real in 10.  Where only differences count, the limit is what equally separated
# normal scores have.
MAX_SIGN, SIGN_TICKS = 0.8, 10
# Distance from a fake to the nearest other fake, as a share of that among reals: 0.66 to 1.05 in avatars_32.  It is 0
# for fakes that are copies of a few images.
MIN_DIVERSITY, DIVERSITY_GRIDS = 0.3, 2
P_MARGIN = 0.99  # share of its limit at which p counts as being there
REALS_SIGN, DIVERSITY, P = "health/reals_sign", "health/diversity", "augment/p"


# Of each alarm, how many ticks in a row it has to hold before it is raised, and what to do then.
RULES = {
    "gradient_spike": (
        1,
        "A single one is harmless. If they come often, lower schedule.learning_rate_g and schedule.learning_rate_d",
    ),
    "skipped_updates": (
        1,
        "This is normal in fp16 while the loss scale is found. Otherwise lower the learning rates, or raise the weight "
        "of the gradient penalty (loss.*)",
    ),
    "overfitting": (
        3,
        "D knows the reals by heart, or is far ahead of G. Give more images, take augmentation=ada (or a lower "
        "augmentation.rampup_images), or stop here and take checkpoint=best",
    ),
    "mode_collapse": (
        1,
        "G draws few different images. Go back{back}, with lower learning rates or a larger gradient penalty",
    ),
    "augmentation": (
        5,
        "Augmentation alone no longer keeps D from overfitting. Give more images, take smaller networks "
        "(model.fmap_max), or stop here and take checkpoint=best",
    ),
}


class Alarms:
    """The alarms of the run in `run_dir`; told the scalars of every tick, in their order."""

    def __init__(self, loss: Loss, run_dir: Path) -> None:
        self.loss, self.run_dir = loss, run_dir
        self._peaks: dict[str, deque[float]] = {}
        self._held = dict.fromkeys(RULES, 0)  # ticks in a row
        self._gone = dict.fromkeys(RULES, CLEAR_TICKS)
        self._begin_resolution(0)

    def _begin_resolution(self, resolution: int) -> None:
        """Forget the scalars of another resolution: scores and images have another scale there."""
        self._resolution, self._highest_rate = resolution, 0.0
        self._signs: deque[float] = deque(maxlen=SIGN_TICKS)
        self._diversities: deque[float] = deque(maxlen=DIVERSITY_GRIDS)

    def at_tick(self, resolution: int, learning_rate: float, scalars: Scalars) -> tuple[dict[str, float], list[str]]:
        """Scalars by tag, 1 for each alarm that holds, and a text for each that is raised now.

        Args: learning_rate: D's; scalars: of the tick, by tag; an alarm whose scalar is missing is not raised.
        """
        if resolution != self._resolution:
            self._begin_resolution(resolution)
        found = {
            "gradient_spike": self._spikes(scalars),
            "skipped_updates": _skipped(scalars),
            "overfitting": self._overfitting(scalars, learning_rate),
            "mode_collapse": self._collapse(scalars),
            "augmentation": _augmentation(scalars),
        }
        raised: dict[str, float] = {}
        texts = []
        for name, what in found.items():
            ticks, remedy = RULES[name]
            self._held[name] = self._held[name] + 1 if what else 0
            holds = self._held[name] >= ticks
            if holds and self._gone[name] >= CLEAR_TICKS:
                texts.append(f"{what}. {remedy.format(back=self._way_back())}.")
            self._gone[name] = 0 if holds else self._gone[name] + 1
            raised[f"alarms/{name}"] = float(holds)
        return {**raised, "health/alarms": sum(raised.values())}, texts

    def _way_back(self) -> str:
        """The keys by which a run goes back to its best checkpoint, or the oldest that it keeps."""
        kept = checkpoints_of(self.run_dir)
        return f" (resume={best_of(kept) or kept[0]} run_dir=NEW)" if kept else ""

    def _spikes(self, scalars: Scalars) -> str:
        found = []
        for name, peak in scalars.items():
            if name.endswith(PEAKED + PEAK):
                recent = self._peaks.setdefault(name, deque(maxlen=SPIKE_TICKS))
                usual = median(recent) if recent else math.inf
                if usual > 0 and peak > SPIKE_FACTOR * usual:  # where it was 0, any is better
                    found.append(f"{name} is {peak:.3g}, {peak / usual:,.0f} times what it was lately")
                if math.isfinite(peak):
                    recent.append(peak)
        return ", ".join(found)

    def _overfitting(self, scalars: Scalars, learning_rate: float) -> str:
        sign = scalars.get(REALS_SIGN)
        self._highest_rate = max(self._highest_rate, learning_rate)
        # With falling rates, D tells reals from a G that hardly moves: 0.9 in the end of good runs (lab book).
        if sign is None or learning_rate < self._highest_rate:
            return ""
        self._signs.append(sign)
        mean = fmean(self._signs)
        if len(self._signs) < SIGN_TICKS or not mean > self.loss.mean_sign(MAX_SIGN):
            return ""
        share = f"{(1 + mean) / 2:.0%} of the reals"
        return f"D takes {share} for real" if self.loss.zero_is_boundary else f"D scores {share} above a fake"

    def _collapse(self, scalars: Scalars) -> str:
        if DIVERSITY in scalars:
            self._diversities.append(scalars[DIVERSITY])
        if len(self._diversities) < DIVERSITY_GRIDS or not max(self._diversities) < MIN_DIVERSITY:
            return ""
        return f"Fakes differ from their nearest neighbours by {self._diversities[-1]:.0%} of what reals do"


def _augmentation(scalars: Scalars) -> str:
    p = scalars.get(P, 0.0)
    return f"The augmentation's p is at its limit, {p:.2f}" if p >= P_MARGIN * MAX_P else ""


def _skipped(scalars: Scalars) -> str:
    counts = {name: scalars.get(f"{name}{COUNTED}", 0.0) for name in ("G", "D")}
    found = [f"{count:.0f} updates of {name}" for name, count in counts.items() if count]
    return f"Skipped {' and '.join(found)}: their gradients were NaN or infinite" if found else ""
