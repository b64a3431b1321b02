"""Means of the metrics of training steps, over many steps and over all ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup

COUNTED = "/skipped"  # names that end so are summed instead of averaged
PEAKED = "/gradient_norm"  # names that end so also get a maximum,
PEAK = "_max"  # under this name


@dataclass
class RunningSums:
    """Sums and maxima of metrics that came with the same names, number by number, and how often they came."""

    sums: Tensor
    peaks: Tensor
    times: int = 1


class MetricAccumulator:
    """Running means of named tensors, kept on the device until they are asked for."""

    def __init__(self) -> None:
        self._running: dict[tuple[tuple[str, int], ...], RunningSums] = {}  # by names and sizes

    def add(self, named: dict[str, Tensor]) -> None:
        """Add tensors of any shape; a name need not come every time."""
        names = tuple((name, values.numel()) for name, values in named.items())
        # One operation for all of them: on a GPU each takes as long to launch as a hundred numbers to add.
        numbers = torch.cat([values.flatten().float() for values in named.values()])
        running = self._running.get(names)
        if running is None:
            self._running[names] = RunningSums(numbers, numbers.clone())
        else:
            running.sums.add_(numbers)
            torch.maximum(running.peaks, numbers, out=running.peaks)
            running.times += 1

    def reduce(self, group: ProcessGroup) -> dict[str, float]:
        """The means (sums, maxima) over all ranks since the last call; waits for the device."""
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        peaks: dict[str, Tensor] = {}
        for names, running in self._running.items():
            sizes = [size for _, size in names]
            parts = zip(names, torch.split(running.sums, sizes), torch.split(running.peaks, sizes), strict=True)
            for (name, size), numbers, largest in parts:
                sums[name] = sums[name] + numbers.sum() if name in sums else numbers.sum()
                counts[name] = counts.get(name, 0) + size * running.times
                if name.endswith(PEAKED):
                    peak = largest.max()
                    peaks[name + PEAK] = torch.maximum(peaks.get(name + PEAK, peak), peak)
        self.reset()
        if not sums:
            return {}
        totals = group.all_reduce_sum(torch.stack(list(sums.values()))).tolist()
        all_counts = group.all_reduce_sum(torch.tensor(list(counts.values()))).tolist()
        highest = group.all_reduce_max(torch.stack(list(peaks.values()))).tolist() if peaks else []
        means = {
            name: total / (group.world_size if name.endswith(COUNTED) else count)
            for name, total, count in zip(sums, totals, all_counts, strict=True)
        }
        return means | dict(zip(peaks, highest, strict=True))

    def reset(self) -> None:
        """Forget everything added."""
        self._running.clear()
