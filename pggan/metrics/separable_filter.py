"""Separable filters of images, without padding.  N images, C channels, S side, K length of the kernel."""

from collections.abc import Sequence

from torch import Tensor


def separable_filter(images: Tensor, kernel: Sequence[float]) -> Tensor:
    """Images [N, C, S, S] filtered with `kernel` [K] in both directions: [N, C, S-K+1, S-K+1]."""
    return _filter_along(_filter_along(images, kernel, 2), kernel, 3)


def _filter_along(images: Tensor, kernel: Sequence[float], dimension: int) -> Tensor:
    """Images filtered along one dimension, tap by tap: all products at once would take K times the memory."""
    side = images.shape[dimension] - len(kernel) + 1
    found = kernel[0] * images.narrow(dimension, 0, side)
    for offset, weight in enumerate(kernel[1:], 1):
        found += weight * images.narrow(dimension, offset, side)
    return found
