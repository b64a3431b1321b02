"""Means of what training steps give to watch, over many steps and over all processes."""

import torch
from torch import Tensor

from pggan.distributed.world import World

COUNTED = "/skipped"  # how these names end
PEAKED = "/gradient_norm"
PEAK = "_max"  # added to them


class Averages:
    """Running means of named tensors, kept on the device until they are asked for.

    Of what is `COUNTED` they are sums; of what is `PEAKED` there is the maximum too.
    """

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}
        self._peaks: dict[str, Tensor] = {}

    def add(self, named: dict[str, Tensor]) -> None:
        """Take in tensors of any shape; a name need not come every time."""
        for name, values in named.items():
            total = values.float().sum()
            self._sums[name] = self._sums[name] + total if name in self._sums else total
            self._counts[name] = self._counts.get(name, 0) + values.numel()
            if name.endswith(PEAKED):
                peak = values.float().max()
                self._peaks[name + PEAK] = torch.maximum(self._peaks.get(name + PEAK, peak), peak)

    def flush(self, world: World) -> dict[str, float]:
        """The means, or sums, over all processes since the last flush; waits for the device."""
        if not self._sums:
            return {}
        sums = world.total(torch.stack(list(self._sums.values()))).tolist()
        counts = world.total(torch.tensor(list(self._counts.values()))).tolist()
        peaks = world.highest(torch.stack(list(self._peaks.values()))).tolist() if self._peaks else []
        means = {
            name: total / (world.size if name.endswith(COUNTED) else count)
            for name, total, count in zip(self._sums, sums, counts, strict=True)
        }
        found = means | dict(zip(self._peaks, peaks, strict=True))
        self.forget()
        return found

    def forget(self) -> None:
        """Begin anew."""
        self._sums.clear()
        self._counts.clear()
        self._peaks.clear()
