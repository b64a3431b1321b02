"""Averages training metrics between two reports, and raises alarms for unhealthy averages."""

from collections import defaultdict, deque
from collections.abc import Mapping
from math import inf, isfinite
from statistics import fmean, median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup

COUNTED = "/skipped"  # metrics with this suffix are summed over all steps; all other metrics are averaged
PEAKED = "/gradient_norm"  # for metrics with this suffix, the maximum is reported, too
PEAK = "_max"  # the maximum of a metric gets this suffix, as in D/gradient_norm_max

SPIKE_FACTOR = 100  # a gradient norm above 100 times its median raises an alarm; spikes at new resolutions are smaller
# An alarm comes if the mean sign of D's scores of reals exceeds 0.8: D then gives 9 of 10 reals a positive score.
# ADA aims at a mean sign of 0.6 (Karras et al. 2020, section 3); runs of the recipe avatars_32 stay below 0.67.
MAX_SIGN, RECENT_TICKS = 0.8, 12
REALS_SIGN = "health/reals_sign"
REMEDIES = {
    "gradients": "This alarm is harmless if it comes once; fp16 also skips updates until its loss scale is found. If "
    "this alarm comes often, lower schedule.learning_rate_g and schedule.learning_rate_d, or raise the weight of the "
    "gradient penalty (loss.*)",
    "overfitting": "D has memorized the reals, or is far ahead of G. Add training images, set augmentation=ada (or a "
    "lower augmentation.rampup_images), or stop training and use checkpoint=best",
}

Values = dict[str, NDArray[np.float32]]  # the values [N] of each metric, by the metric's name; N grows with every step


class MetricAccumulator:
    """Collects metrics on the device until the next report, so that no training step waits for a copy to the CPU."""

    def __init__(self) -> None:
        self._steps: list[tuple[dict[str, int], Tensor]] = []

    def add(self, named: dict[str, Tensor]) -> None:
        # One concatenation launches fewer kernels than copying the metrics one by one.
        flat = torch.cat([values.detach().flatten().float() for values in named.values()])
        self._steps.append(({name: values.numel() for name, values in named.items()}, flat))

    def take(self) -> Values:
        """Return this rank's metrics since the previous call of `take`, copied to the CPU."""
        steps, self._steps = self._steps, []
        parts = defaultdict[str, list[Tensor]](list)
        for sizes, flat in steps:
            for name, part in zip(sizes, torch.split(flat.cpu(), [*sizes.values()]), strict=True):
                parts[name].append(part)
        return {name: torch.cat(found).numpy() for name, found in parts.items()}


def means(values: Values, group: ProcessGroup) -> dict[str, float]:
    """Return means of metrics over steps and ranks, sums of skipped updates, and also maxima of gradient norms."""
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
    """Raises alarms for unhealthy metrics; the text of an alarm is shown once per resolution."""

    def __init__(self, max_sign: float) -> None:
        self.max_sign, self._resolution = max_sign, 0
        self._recent = defaultdict[str, deque[float]](lambda: deque(maxlen=RECENT_TICKS))

    def at_tick(
        self, resolution: int, scalars: Mapping[str, float], *, rates_fall: bool
    ) -> tuple[dict[str, float], list[str]]:
        """Return {TensorBoard tag: value} for all alarms (1: on, 0: off), and the texts of new alarms."""
        if resolution != self._resolution:
            self._resolution, self._said = resolution, set[str]()
            self._recent[REALS_SIGN].clear()  # scores at two resolutions can't be compared, so old scores are dropped
        found = {
            "gradients": self._gradients(scalars),
            # While learning rates decay, even good runs have a D that is right about most reals, so this alarm is off.
            "overfitting": "" if rates_fall else self._overfitting(scalars),
        }
        raised = {f"alarms/{name}": float(bool(what)) for name, what in found.items()}
        new = [name for name, what in found.items() if what and name not in self._said]
        self._said.update(new)
        return raised | {"health/alarms": sum(raised.values())}, [f"{found[name]}. {REMEDIES[name]}." for name in new]

    def _gradients(self, scalars: Mapping[str, float]) -> str:
        found = []
        for name, value in scalars.items():
            if name.endswith(COUNTED) and value > 0:
                found.append(f"Skipped {value:.0f} updates of {name[0]}: gradients were NaN or infinite")
            elif name.endswith(PEAKED + PEAK) and isfinite(value):
                usual = median(self._recent[name] or [inf])
                self._recent[name].append(value)
                if value > SPIKE_FACTOR * usual > 0:
                    found.append(f"{name} is {value:.3g}, {value / usual:,.0f} times its recent median")
        return ", ".join(found)

    def _overfitting(self, scalars: Mapping[str, float]) -> str:
        signs = self._recent[REALS_SIGN]
        signs.extend([scalars[REALS_SIGN]] if REALS_SIGN in scalars else [])
        is_high = len(signs) == RECENT_TICKS and fmean(signs) > self.max_sign
        return f"D is right about {(1 + fmean(signs)) / 2:.0%} of the reals" if is_high else ""
