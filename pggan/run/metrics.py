"""Means of the metrics of training steps, over many steps and over all ranks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pggan.distributed.process_group import ProcessGroup

COUNTED = "/skipped"  # how these names end
PEAKED = "/gradient_norm"
PEAK = "_max"  # added to them

Names = tuple[tuple[str, int], ...]  # and how many numbers each has


@dataclass
class RunningSums:
    """The sums and maxima of what came with the same names, number by number, and how often it came."""

    sums: Tensor
    peaks: Tensor
    times: int = 1


class MetricAccumulator:
    """Running means of named tensors, kept on the device until they are asked for.

    Of what is `COUNTED` they are sums; of what is `PEAKED` there is the maximum too.
    """

    def __init__(self) -> None:
        self._of: dict[Names, RunningSums] = {}

    def add(self, named: dict[str, Tensor]) -> None:
        """Take in tensors of any shape; a name need not come every time."""
        names = tuple((name, values.numel()) for name, values in named.items())
        # All at once, number by number: on a GPU every operation takes as long to begin as a hundred numbers to add.
        numbers = torch.cat([values.flatten().float() for values in named.values()])
        running = self._of.get(names)
        if running is None:
            self._of[names] = RunningSums(numbers, numbers.clone())
        else:
            running.sums.add_(numbers)
            torch.maximum(running.peaks, numbers, out=running.peaks)
            running.times += 1

    def reduce(self, group: ProcessGroup) -> dict[str, float]:
        """The means, or sums, over all ranks since the last call; waits for the device."""
        if not self._of:
            return {}
        sums: dict[str, Tensor] = {}
        counts: dict[str, int] = {}
        peaks: dict[str, Tensor] = {}
        for names, running in self._of.items():
            sizes = [size for _, size in names]
            parts = zip(names, torch.split(running.sums, sizes), torch.split(running.peaks, sizes), strict=True)
            for (name, size), numbers, largest in parts:
                sums[name] = sums[name] + numbers.sum() if name in sums else numbers.sum()
                counts[name] = counts.get(name, 0) + size * running.times
                if name.endswith(PEAKED):
                    peak = largest.max()
                    peaks[name + PEAK] = torch.maximum(peaks.get(name + PEAK, peak), peak)
        totals = group.all_reduce_sum(torch.stack(list(sums.values()))).tolist()
        all_counts = group.all_reduce_sum(torch.tensor(list(counts.values()))).tolist()
        highest = group.all_reduce_max(torch.stack(list(peaks.values()))).tolist() if peaks else []
        means = {
            name: total / (group.world_size if name.endswith(COUNTED) else count)
            for name, total, count in zip(sums, totals, all_counts, strict=True)
        }
        found = means | dict(zip(peaks, highest, strict=True))
        self.reset()
        return found

    def reset(self) -> None:
        """Begin anew."""
        self._of.clear()
