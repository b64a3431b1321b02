"""Separable filters against a direct sum."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pggan.metrics.separable_filter import separable_filter

KERNEL = [0.1, 0.2, 0.4, 0.2, 0.1]


def test_the_filter_is_the_sum_over_every_window():
    images = torch.rand(2, 3, 9, 9, dtype=torch.float64)
    line = torch.tensor(KERNEL, dtype=torch.float64)
    windows = images.unfold(2, 5, 1).unfold(3, 5, 1)
    expected = (windows * line[:, None] * line).sum((-2, -1))
    torch.testing.assert_close(separable_filter(images, KERNEL), expected, rtol=0, atol=1e-14)


class Sizes(TorchDispatchMode):
    """The sizes of all tensors that operations give."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.found.append(result.numel())
        return result


def test_nothing_larger_than_the_images_is_held():
    """At 1024x1024, eleven times the images would be gigabytes."""
    images = torch.rand(2, 3, 9, 9)
    with Sizes() as sizes:
        separable_filter(images, KERNEL)
    assert max(sizes.found) <= images.numel()
