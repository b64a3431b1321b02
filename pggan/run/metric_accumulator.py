"""Means of the metrics of training steps, over many steps and over all ranks."""

from collections import Counter, deque

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributed import ReduceOp

from pggan.distributed.process_group import ProcessGroup

COUNTED = "/skipped"  # names that end so are summed instead of averaged
PEAKED = "/gradient_norm"  # names that end so also get a maximum
PEAK = "_max"  # what the name of that maximum has at its end

RECENT = 64  # updates whose values are kept one by one

NamesAndSizes = tuple[tuple[str, int], ...]


class MetricAccumulator:
    """Running means of named tensors, kept on the device until they are asked for."""

    def __init__(self) -> None:
        # By the names and sizes that came together: sums and maxima, number by number, and how often they came.
        self._running: dict[NamesAndSizes, tuple[Tensor, Tensor]] = {}
        self._times: Counter[NamesAndSizes] = Counter()
        self._recent: deque[tuple[NamesAndSizes, Tensor]] = deque(maxlen=RECENT)

    def add(self, named: dict[str, Tensor]) -> None:
        """Add tensors of any shape; a name need not come every time."""
        names = tuple((name, values.numel()) for name, values in named.items())
        # One operation for all of them: on a GPU each takes as long to launch as a hundred numbers to add.
        flat = torch.cat([values.flatten().float() for values in named.values()])
        if names in self._running:
            sums, peaks = self._running[names]
            sums.add_(flat)
            torch.maximum(peaks, flat, out=peaks)
        else:
            self._running[names] = flat.clone(), flat.clone()
        self._times[names] += 1
        self._recent.append((names, flat))

    def recent(self, prefix: str) -> dict[str, NDArray[np.float32]]:
        """The values [N] on this rank, one by one, of names with `prefix` in the last updates; waits for the device."""
        found: dict[str, list[Tensor]] = {}
        for names, flat in self._recent:
            for (name, _), values in zip(names, torch.split(flat, [size for _, size in names]), strict=True):
                if name.startswith(prefix):
                    found.setdefault(name, []).append(values)
        return {name: torch.cat(values).cpu().numpy() for name, values in found.items()}

    def reduce(self, group: ProcessGroup) -> dict[str, float]:
        """The means (sums, maxima) over all ranks since the last call; waits for the device."""
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        peaks: dict[str, Tensor] = {}
        for names, running in self._running.items():
            of_names = (torch.split(flat, [size for _, size in names]) for flat in running)
            for (name, size), values, largest in zip(names, *of_names, strict=True):
                sums[name] = sums[name] + values.sum() if name in sums else values.sum()
                counts[name] = counts.get(name, 0) + size * self._times[names]
                if name.endswith(PEAKED):
                    peak = largest.max()
                    peaks[name + PEAK] = torch.maximum(peaks.get(name + PEAK, peak), peak)
        self.reset()
        if not sums:
            return {}
        totals = group.all_reduce(torch.stack(list(sums.values()))).tolist()
        all_counts = group.all_reduce(torch.tensor(list(counts.values()))).tolist()
        highest = group.all_reduce(torch.stack(list(peaks.values())), ReduceOp.MAX).tolist() if peaks else []
        means = {
            name: total / (group.world_size if name.endswith(COUNTED) else count)
            for name, total, count in zip(sums, totals, all_counts, strict=True)
        }
        return means | dict(zip(peaks, highest, strict=True))

    def reset(self) -> None:
        """Forget everything added."""
        self._running.clear()
        self._times.clear()
        self._recent.clear()
