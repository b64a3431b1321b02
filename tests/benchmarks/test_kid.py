"""The kernel inception distance."""

import numpy as np
import pytest
import torch

from benchmarks.kid import kernel_distance


def test_the_kernel_distance_is_the_unbiased_one_of_its_definition():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 3)), random.normal(1, 1, size=(4, 3))
    total = 0.0
    for a, b, same in ((x, x, True), (y, y, True), (x, y, False)):
        values = [(a[i] @ b[j] / 3 + 1) ** 3 for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        total += np.mean(values) * (1 if same else -2)
    assert kernel_distance(torch.tensor(x), torch.tensor(y)) == pytest.approx(1000 * total)
