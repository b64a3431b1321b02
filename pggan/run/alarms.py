"""Alarms: what the scalars of a run say is going wrong, and what to do about it.

Each one is raised once, when it has held for some ticks in a row, and again when it had been gone for CLEAR_TICKS.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median

from pggan.augmentation.ada import MAX_P
from pggan.checkpoints.read import best_of, checkpoints_of
from pggan.core.next_command import as_typed
from pggan.losses.base import Loss
from pggan.run.metric_accumulator import COUNTED, PEAK, PEAKED

Scalars = Mapping[str, float]

WAY_BACK = "{way_back}"  # stands for the text of `way_back` in a remedy
CLEAR_TICKS = 5
SPIKE_FACTOR = 100  # times the recent median of a gradient norm; growth and restarts stay far below
SPIKE_TICKS = 10  # whose median it is
# Scores that are log-odds: when they lie this far apart, D is wrong about one image in 150 (sigmoid(10 / 2) = 0.9933).
# The gap stays below 2 in the recipe avatars_32, which goes well.
MAX_GAP = 10.0
# Scores without a scale, as those of Wasserstein losses: times the recent median of the gap.
GAP_FACTOR, GAP_TICKS, MIN_GAP_TICKS = 20, 20, 5
# ADA aims at a mean sign of 0.6 (Karras et al. 2020, section 3), and in avatars_32 it stays below 0.67 until the rates
# fall.  At 0.8, D is wrong about one real in 10.  Where only differences count, the limit is what equally separated
# normal scores have.
MAX_SIGN, SIGN_TICKS = 0.8, 10
# Distance from a fake to the nearest other fake, as a share of that among reals: 0.66 to 1.05 in avatars_32.  It is 0
# for fakes that are copies of a few images.
MIN_DIVERSITY, DIVERSITY_GRIDS = 0.3, 2
P_MARGIN = 0.99  # share of its limit at which p counts as being there
REALS_SIGN, DIVERSITY, P = "health/reals_sign", "health/diversity", "augment/p"


@dataclass(frozen=True)
class Rule:
    """One alarm: how many ticks in a row it has to hold before it is raised, and what to do then."""

    ticks: int
    remedy: str
    with_ada: str = ""  # what to do where p is adapted, if that is something else


RULES = {
    "gradient_spike": Rule(
        1, "A single one is harmless. If they come often, lower schedule.learning_rate_g and schedule.learning_rate_d"
    ),
    "no_gradient": Rule(
        3,
        f"Nothing is learned any more. {WAY_BACK}, with lower schedule.learning_rate_g and schedule.learning_rate_d",
    ),
    "skipped_updates": Rule(
        1,
        "This is normal in fp16 while the loss scale is found. Otherwise lower the learning rates, or raise the weight "
        "of the gradient penalty (loss.*)",
    ),
    "score_gap": Rule(
        3,
        "G learns little from such a D. Lower schedule.learning_rate_d, or raise the weight of the gradient penalty "
        "(loss.*)",
    ),
    "overfitting": Rule(
        3,
        "D knows the reals by heart, or is far ahead of G. Give more images, take augmentation=ada, or stop here and "
        "take checkpoint=best",
        "D knows the reals by heart, or is far ahead of G. Let p rise faster (a lower augmentation.rampup_images), "
        "give more images, or stop here and take checkpoint=best",
    ),
    "mode_collapse": Rule(
        1,
        f"G draws few different images. {WAY_BACK}, with lower learning rates or a larger weight of the gradient "
        "penalty",
    ),
    "augmentation": Rule(
        5,
        "Augmentation alone no longer keeps D from overfitting. Give more images, take smaller networks "
        "(model.fmap_max), or stop here and take checkpoint=best",
    ),
}


def way_back(run_dir: Path, total: int, *, begins_from_weights: bool) -> str:
    """The beginning of a sentence: how the run in `run_dir` goes back to its best checkpoint, or the oldest it keeps.

    Args: total: images at which the run is to end; begins_from_weights: init_from= is among the keys of its command.
    """
    kept = checkpoints_of(run_dir)
    if not kept:
        return "Begin again"
    best, recipe = best_of(kept), run_dir / "recipe.yaml"
    which, place = ("oldest", kept[0]) if best is None else ("best", best)
    command, values = "this run's command with", dict[str, object](resume=place, run_dir="NEW")
    if recipe.is_file():  # chosen for hours=, which are not for a run that goes back
        command = f"pggan train {as_typed({'experiment': recipe})}"
        values["schedule.total_images"] = total
    if begins_from_weights:
        values["init_from"] = None
    return f"Go back to the {which} checkpoint that there is ({command} {as_typed(values)})"


class Alarms:
    """The alarms of one run; told the scalars of every tick, in their order."""

    def __init__(self, loss: Loss, way_back: Callable[[], str]) -> None:
        """Args: way_back: gives the text of the function of that name for the run as it is."""
        self.loss, self.way_back = loss, way_back
        self.restart(0)

    def restart(self, images: int) -> None:
        """Continue from any count of `images` without what the ticks so far have told."""
        self._begin_resolution(0)
        self._peaks: dict[str, deque[float]] = {}
        self._held = dict.fromkeys(RULES, 0)  # ticks in a row
        self._gone = dict.fromkeys(RULES, CLEAR_TICKS)

    def _begin_resolution(self, resolution: int) -> None:
        """Forget the scalars of another resolution: scores and images have another scale there."""
        self._resolution = resolution
        self._gaps: deque[float] = deque(maxlen=GAP_TICKS)
        self._signs: deque[float] = deque(maxlen=SIGN_TICKS)
        self._highest_rate = 0.0
        self._diversities: deque[float] = deque(maxlen=DIVERSITY_GRIDS)

    def at_tick(self, resolution: int, learning_rate: float, scalars: Scalars) -> tuple[dict[str, float], list[str]]:
        """Scalars by tag, 1 for each alarm that holds, and a text for each that is raised now.

        Args: learning_rate: D's; scalars: of the tick, by tag; an alarm whose scalar is missing is not raised.
        """
        if resolution != self._resolution:
            self._begin_resolution(resolution)
        found = {
            "gradient_spike": self._spikes(scalars),
            "no_gradient": _no_gradient(scalars),
            "skipped_updates": _skipped(scalars),
            "score_gap": self._score_gap(scalars),
            "overfitting": self._overfitting(scalars, learning_rate),
            "mode_collapse": self._collapse(scalars),
            "augmentation": self._augmentation(scalars),
        }
        raised: dict[str, float] = {}
        texts = []
        for name, what in found.items():
            rule = RULES[name]
            self._held[name] = self._held[name] + 1 if what else 0
            holds = self._held[name] >= rule.ticks
            if holds and self._gone[name] >= CLEAR_TICKS:
                remedy = (P in scalars and rule.with_ada) or rule.remedy
                texts.append(f"{what}. {remedy.replace(WAY_BACK, self.way_back())}.")
            self._gone[name] = 0 if holds else self._gone[name] + 1
            raised[f"alarms/{name}"] = float(holds)
        return {**raised, "health/alarms": sum(raised.values())}, texts

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

    def _score_gap(self, scalars: Scalars) -> str:
        gap = scalars.get("scores/reals", math.nan) - scalars.get("scores/fakes", math.nan)
        if not math.isfinite(gap):
            return ""
        if self.loss.scores_are_log_odds:
            above = "above" if gap > 0 else "below"
            return f"D's scores of reals lie {abs(gap):.3g} {above} those of fakes" if abs(gap) > MAX_GAP else ""
        usual = median(map(abs, self._gaps)) if len(self._gaps) >= MIN_GAP_TICKS else math.inf
        if 0 < GAP_FACTOR * usual < abs(gap):  # it does not count as usual, or the alarm would end by itself
            return f"D's scores of reals and fakes lie {gap:.3g} apart, {abs(gap) / usual:,.0f} times what was usual"
        self._gaps.append(gap)
        return ""

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

    def _augmentation(self, scalars: Scalars) -> str:
        p = scalars.get(P, 0.0)
        return f"The augmentation's p is at its limit, {p:.2f}" if p >= P_MARGIN * MAX_P else ""


def _no_gradient(scalars: Scalars) -> str:
    found = [name for name in ("G", "D") if scalars.get(f"{name}{PEAKED}{PEAK}") == 0]
    return f"The gradients of {' and '.join(found)} are 0" if found else ""


def _skipped(scalars: Scalars) -> str:
    counts = {name: scalars.get(f"{name}{COUNTED}", 0.0) for name in ("G", "D")}
    found = [f"{count:.0f} updates of {name}" for name, count in counts.items() if count]
    return f"Skipped {' and '.join(found)}: their gradients were NaN or infinite" if found else ""
