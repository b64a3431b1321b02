"""KID, FID, precision and recall, against their definitions and other programs."""

import pytest
import torch

from pggan.core.rng import generator_for
from pggan.metrics.features import KernelInceptionDistance, PrecisionRecall, frechet_distance, kernel_distance


def test_the_kernel_distance_is_that_of_torchmetrics(features):
    from torchmetrics.image.kid import poly_mmd

    x, y = features[0].double(), features[1][:1100].double()
    # Sums of kernel values of about 1 to 100, each rounded to 2^-53.
    assert kernel_distance(x, y) == pytest.approx(1000 * float(poly_mmd(x, y)), rel=1e-9)


def test_kid_and_its_floor_are_those_of_the_features_of_the_first_reals(task_of, make_pyramid, tmp_path):
    """The fakes are the reals in this test: unlike two other sets, a set and itself have a number below 0."""
    task = task_of(None, make_pyramid(tmp_path / "data", images=48))
    metric = KernelInceptionDistance(task, 40)
    for block in task.partition.own(40):
        metric.fakes.add(torch.from_numpy(task.reals.read(block)).permute(0, 3, 1, 2))
    values = metric.values()
    rows = metric.fakes.rows()
    assert rows.shape == (40, 3 * 16 * 16)
    assert set(values) == {"kid@pixels-40", "kid_floor@pixels-20"}
    assert values["kid@pixels-40"] == kernel_distance(rows, rows) < 0
    assert values["kid_floor@pixels-20"] == kernel_distance(rows[:20], rows[20:])


def test_the_frechet_distance_is_that_of_eigenvalues_where_covariances_are_singular():
    """Of 12 and 15 images by 40 features.

    Those of S1 S2 that are 0 come out as rounding, up to 1e-13 of the largest, and roots of 28 of them are added: 1e-5.
    """
    x, y = (torch.randn(count, 40, generator=generator_for(0, "few", count)).double() for count in (12, 15))
    roots = torch.linalg.eigvals(x.T.cov() @ y.T.cov()).sqrt().real.sum()
    expected = (x.mean(0) - y.mean(0)).square().sum() + x.T.cov().trace() + y.T.cov().trace() - 2 * roots
    assert frechet_distance(x, y) == pytest.approx(float(expected), rel=1e-5)
    assert frechet_distance(x, x) == pytest.approx(0, abs=1e-12)  # sums of 480 numbers of about 1


def test_precision_and_recall_are_those_of_torch_fidelity(features, task_of, make_pyramid, tmp_path):
    from torch_fidelity.metric_prc import calculate_precision_recall_full

    fakes, reals = (part.double() for part in features)
    precision, recall = calculate_precision_recall_full(fakes, reals, neighborhood=3)
    metric = PrecisionRecall(task_of(None, make_pyramid(tmp_path / "data")), 1100)
    found = metric.compare(fakes, reals)
    assert found["precision"] == (pytest.approx(float(precision)), 1100)
    assert found["recall"] == (pytest.approx(float(recall)), 1100)
    assert 0 < precision != recall
