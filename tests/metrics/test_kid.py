"""The kernel inception distance, against its definition and another program."""

import numpy as np
import pytest
import torch

from pggan.metrics.kid import KernelInceptionDistance, kernel_distance


def test_the_kernel_distance_is_the_unbiased_one_of_its_definition():
    random = np.random.default_rng(0)
    x, y = random.normal(size=(5, 3)), random.normal(1, 1, size=(4, 3))
    total = 0.0
    for a, b, same in ((x, x, True), (y, y, True), (x, y, False)):
        values = [(a[i] @ b[j] / 3 + 1) ** 3 for i in range(len(a)) for j in range(len(b)) if not (same and i == j)]
        total += np.mean(values) * (1 if same else -2)
    assert kernel_distance(torch.tensor(x), torch.tensor(y)) == pytest.approx(1000 * total)


@pytest.mark.xdist_group("torchvision")  # torchmetrics imports it, which takes seconds
def test_it_is_that_of_torchmetrics_on_the_same_features(features, monkeypatch):
    from torchmetrics.image.kid import poly_mmd

    x, y = features[0].double(), features[1][:80].double()
    monkeypatch.setattr("pggan.metrics.kid.ROWS", 7)
    # Sums of 80 x 80 kernel values of about 1 to 100, each rounded to 2^-53.
    assert kernel_distance(x, y) == pytest.approx(1000 * float(poly_mmd(x, y)), rel=1e-9)


def test_the_metric_and_its_floor_are_those_of_the_reals_features(task_of, make_pyramid, tmp_path):
    """The fakes are the reals in this test: unlike two other sets, a set and itself have a number below 0."""
    task = task_of(None, make_pyramid(tmp_path / "data", images=48))
    metric = KernelInceptionDistance(task, 40)
    for block in task.partition.own(40):
        metric.fakes.add(torch.from_numpy(task.reals.read(block)).permute(0, 3, 1, 2))
    values = metric.values()
    rows = metric.fakes.rows(40)
    assert set(values) == {"kid@pixels-40", "kid_floor@pixels-20"}
    assert values["kid@pixels-40"] == kernel_distance(rows, rows) < 0
    assert values["kid_floor@pixels-20"] == kernel_distance(rows[:20], rows[20:])
