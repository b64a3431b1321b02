"""The health of a run at a tick: the means of its numbers, and alarms."""

from collections import defaultdict, deque
from collections.abc import Mapping
from math import inf, isfinite
from statistics import fmean, median

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup

COUNTED = "/skipped"  # names that end so are summed instead of averaged
PEAKED = "/gradient_norm"  # names that end so also get a maximum
PEAK = "_max"  # what the name of that maximum has at its end

SPIKE_FACTOR = 100  # times the recent median of a gradient norm; growth and restarts stay far below
# ADA aims at a mean sign of 0.6 (Karras et al. 2020, section 3), and in avatars_32 it stays below 0.67 until the rates
# fall.  At 0.8, D is wrong about one real in 10.  Where only differences count, the limit is what equally separated
# normal scores have.
MAX_SIGN, RECENT_TICKS = 0.8, 12
REALS_SIGN = "health/reals_sign"
REMEDIES = {
    "gradients": "A single one is harmless, and skipped updates are normal in fp16 while the loss scale is found. If "
    "they come often, lower schedule.learning_rate_g and schedule.learning_rate_d, or raise the weight of the gradient "
    "penalty (loss.*)",
    "overfitting": "D knows the reals by heart, or is far ahead of G. Give more images, take augmentation=ada (or a "
    "lower augmentation.rampup_images), or stop here and take checkpoint=best",
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
    """The alarms of a run; told the scalars of every tick, in their order.  Each is said once per resolution."""

    def __init__(self, max_sign: float) -> None:
        """Args: max_sign: the mean sign of reals' scores above which D knows them by heart."""
        self.max_sign, self._resolution = max_sign, 0
        self._recent = defaultdict[str, deque[float]](lambda: deque(maxlen=RECENT_TICKS))

    def at_tick(
        self, resolution: int, scalars: Mapping[str, float], *, rates_fall: bool
    ) -> tuple[dict[str, float], list[str]]:
        """Scalars by tag, 1 for each alarm that holds, and a text for each that is to be said now.

        Args: scalars: of the tick, by tag; an alarm whose scalar is missing is not raised; rates_fall: then D tells
        reals from a G that hardly moves: a mean sign of 0.9 in the end of good runs (lab book).
        """
        if resolution != self._resolution:  # scores have another scale there
            self._resolution, self._said = resolution, set[str]()
            self._recent[REALS_SIGN].clear()
        found = {
            "gradients": self._gradients(scalars),
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
                found.append(f"Skipped {value:.0f} updates of {name[0]}, whose gradients were NaN or infinite")
            elif name.endswith(PEAKED + PEAK) and isfinite(value):
                usual = median(self._recent[name] or [inf])
                self._recent[name].append(value)
                if value > SPIKE_FACTOR * usual > 0:
                    found.append(f"{name} is {value:.3g}, {value / usual:,.0f} times what it was lately")
        return ", ".join(found)

    def _overfitting(self, scalars: Mapping[str, float]) -> str:
        signs = self._recent[REALS_SIGN]
        signs.extend([scalars[REALS_SIGN]] if REALS_SIGN in scalars else [])
        is_high = len(signs) == RECENT_TICKS and fmean(signs) > self.max_sign
        return f"D is right about {(1 + fmean(signs)) / 2:.0%} of the reals" if is_high else ""
