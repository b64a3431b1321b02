"""Weighted means of windows of pixels, in one direction after the other.  N images, C channels, S and W sides."""

from collections.abc import Sequence

from torch import Tensor


def smooth(images: Tensor, window: Sequence[float]) -> Tensor:
    """The means of every window in images [N, C, S, S], by the weights `window` both ways: [N, C, S-W+1, S-W+1]."""
    return _weighted_sum(_weighted_sum(images, window, 2), window, 3)


def _weighted_sum(images: Tensor, window: Sequence[float], dimension: int) -> Tensor:
    """The sums along one dimension; one weight at a time, as all products at once would take W times the memory."""
    side = images.shape[dimension] - len(window) + 1
    found = window[0] * images.narrow(dimension, 0, side)
    for offset, weight in enumerate(window[1:], 1):
        found += weight * images.narrow(dimension, offset, side)
    return found
