"""The health of a run at a tick: the means of its numbers, and alarms."""

import math
from collections import deque
from collections.abc import Mapping
from statistics import fmean, median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup
from pggan.losses.base import Loss

COUNTED = "/skipped"  # names that end so are summed instead of averaged
PEAKED = "/gradient_norm"  # names that end so also get a maximum
PEAK = "_max"  # what the name of that maximum has at its end

CLEAR_TICKS = 5  # an alarm that was gone for so long is said again
SPIKE_FACTOR = 100  # times the recent median of a gradient norm; growth and restarts stay far below
SPIKE_TICKS = 10  # whose median it is
# ADA aims at a mean sign of 0.6 (Karras et al. 2020, section 3), and in avatars_32 it stays below 0.67 until the rates
# fall.  At 0.8, D is wrong about one real in 10.  Where only differences count, the limit is what equally separated
# normal scores have.
MAX_SIGN, SIGN_TICKS = 0.8, 12
# Distance from a fake to the nearest other fake, as a share of the same distance among reals: 0.66 to 1.05 in
# avatars_32.  It is 0 for fakes that are copies of a few images.
MIN_DIVERSITY, DIVERSITY_GRIDS = 0.3, 2
REALS_SIGN, DIVERSITY = "health/reals_sign", "health/diversity"
REMEDIES = {
    "gradients": "A single one is harmless, and skipped updates are normal in fp16 while the loss scale is found. If "
    "they come often, lower schedule.learning_rate_g and schedule.learning_rate_d, or raise the weight of the gradient "
    "penalty (loss.*)",
    "overfitting": "D knows the reals by heart, or is far ahead of G. Give more images, take augmentation=ada (or a "
    "lower augmentation.rampup_images), or stop here and take checkpoint=best",
    "mode_collapse": "G draws few different images. Go back to an earlier checkpoint (resume=RUN/checkpoints/IMAGES "
    "run_dir=NEW), with lower learning rates or a larger gradient penalty",
}

Values = dict[str, NDArray[np.float32]]  # numbers [N] by name


class MetricAccumulator:
    """The named tensors of all steps since the last tick, kept on the device until they are asked for."""

    def __init__(self) -> None:
        self._steps: list[tuple[dict[str, int], Tensor]] = []  # sizes by name, and all numbers

    def add(self, named: dict[str, Tensor]) -> None:
        """Add tensors of any shape; a name need not come every time."""
        # One operation for all of them: on a GPU each takes as long to launch as a hundred numbers to copy.
        flat = torch.cat([values.detach().flatten().float() for values in named.values()])
        self._steps.append(({name: values.numel() for name, values in named.items()}, flat))

    def take(self) -> Values:
        """The numbers on this rank since the last call, one by one; waits for the device."""
        steps, self._steps = self._steps, []
        parts: dict[str, list[Tensor]] = {}
        numbers = torch.cat([flat for _, flat in steps]).cpu() if steps else torch.zeros(0)
        sizes = [(name, size) for names, _ in steps for name, size in names.items()]
        for (name, _), part in zip(sizes, torch.split(numbers, [size for _, size in sizes]), strict=True):
            parts.setdefault(name, []).append(part)
        return {name: torch.cat(found).numpy() for name, found in parts.items()}


def means(values: Values, group: ProcessGroup) -> dict[str, float]:
    """The means of `values` over all ranks, the sums of those that are COUNTED, and the maxima of those PEAKED."""
    if not values:
        return {}
    mine = [(float(each.sum(dtype=np.float64)), each.size, float(each.max())) for each in values.values()]
    everyone = np.array(group.all_gather_object(mine))  # [ranks, names, 3]
    sums, counts = everyone[..., :2].sum(0).T.tolist()
    found = {
        name: total / (group.world_size if name.endswith(COUNTED) else count)
        for name, total, count in zip(values, sums, counts, strict=True)
    }
    peaks = zip(values, everyone[..., 2].max(0).tolist(), strict=True)
    return found | {name + PEAK: peak for name, peak in peaks if name.endswith(PEAKED)}


class Alarms:
    """The alarms of a run; told the numbers of every tick, in their order."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss
        self._peaks: dict[str, deque[float]] = {}
        self._tick, self._held_at = 0, dict.fromkeys(REMEDIES, -math.inf)
        self._begin_resolution(0)

    def _begin_resolution(self, resolution: int) -> None:
        """Forget the numbers of another resolution: scores and images have another scale there."""
        self._resolution, self._highest_rate = resolution, 0.0
        self._signs: deque[float] = deque(maxlen=SIGN_TICKS)
        self._diversities: deque[float] = deque(maxlen=DIVERSITY_GRIDS)

    def at_tick(
        self, resolution: int, learning_rate: float, scalars: Mapping[str, float]
    ) -> tuple[dict[str, float], list[str]]:
        """Scalars by tag, 1 for each alarm that holds, and a text for each that is raised now.

        Args: learning_rate: D's; scalars: of the tick, by tag; an alarm whose scalar is missing is not raised.
        """
        if resolution != self._resolution:
            self._begin_resolution(resolution)
        self._tick += 1
        texts, raised = list[str](), dict[str, float]()
        for name, what in (
            ("gradients", self._gradients(scalars)),
            ("overfitting", self._overfitting(scalars, learning_rate)),
            ("mode_collapse", self._collapse(scalars)),
        ):
            raised[f"alarms/{name}"] = float(bool(what))
            if what and self._tick - self._held_at[name] > CLEAR_TICKS:
                texts.append(f"{what}. {REMEDIES[name]}.")
            self._held_at[name] = self._tick if what else self._held_at[name]
        return {**raised, "health/alarms": sum(raised.values())}, texts

    def _gradients(self, scalars: Mapping[str, float]) -> str:
        found = []
        for name, value in scalars.items():
            if name.endswith(COUNTED) and value > 0:
                found.append(f"Skipped {value:.0f} updates of {name[0]}, whose gradients were NaN or infinite")
            elif name.endswith(PEAKED + PEAK):
                recent = self._peaks.setdefault(name, deque(maxlen=SPIKE_TICKS))
                usual = median(recent) if recent else math.inf
                if usual > 0 and value > SPIKE_FACTOR * usual:  # where it was 0, any is better
                    found.append(f"{name} is {value:.3g}, {value / usual:,.0f} times what it was lately")
                if math.isfinite(value):
                    recent.append(value)
        return ", ".join(found)

    def _overfitting(self, scalars: Mapping[str, float], learning_rate: float) -> str:
        self._highest_rate = max(self._highest_rate, learning_rate)
        # With falling rates, D tells reals from a G that hardly moves: 0.9 in the end of good runs (lab book).
        if REALS_SIGN not in scalars or learning_rate < self._highest_rate:
            return ""
        self._signs.append(scalars[REALS_SIGN])
        mean = fmean(self._signs)
        is_high = len(self._signs) == SIGN_TICKS and mean > self.loss.mean_sign(MAX_SIGN)
        return f"D is right about {(1 + mean) / 2:.0%} of the reals" if is_high else ""

    def _collapse(self, scalars: Mapping[str, float]) -> str:
        if DIVERSITY in scalars:
            self._diversities.append(scalars[DIVERSITY])
        if len(self._diversities) < DIVERSITY_GRIDS or not max(self._diversities) < MIN_DIVERSITY:
            return ""
        return f"Fakes differ from their nearest neighbours by {self._diversities[-1]:.0%} of what reals do"
