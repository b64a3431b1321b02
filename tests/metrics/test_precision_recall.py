"""Improved precision and recall, against a worked example and another program."""

import pytest
import torch

from pggan.metrics.precision_recall import PrecisionRecall, covered


def test_a_point_is_covered_within_the_third_neighbour_of_any_centre():
    centres = torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]])  # with radii 3, 2, 2, 3, 9
    points = torch.tensor([[-2.9], [-3.1], [5.9], [18.9], [19.1]])
    assert covered(points, centres) == pytest.approx(3 / 5)


def test_precision_is_that_of_fakes_and_recall_that_of_reals(task_of, make_pyramid, tmp_path):
    """All fakes lie near one real."""
    metric = PrecisionRecall(task_of(None, make_pyramid(tmp_path / "data")), 5)
    fakes, reals = torch.tensor([[0.0], [0.1], [0.2], [0.3], [0.4]]), torch.tensor([[0.0], [1.0], [2.0], [3.0], [10.0]])
    assert metric.compare(fakes, reals) == {"precision@pixels-5": 1, "recall@pixels-5": 1 / 5}


@pytest.mark.xdist_group("torchvision")  # torch_fidelity imports it, which takes seconds
def test_both_are_those_of_torch_fidelity_on_the_same_features(features):
    from torch_fidelity.metric_prc import calculate_precision_recall_full

    fakes, reals = (part.double() for part in features)
    precision, recall = calculate_precision_recall_full(fakes, reals, neighborhood=3)
    assert (covered(fakes, reals), covered(reals, fakes)) == (float(precision), float(recall))
    assert 0 < covered(fakes, reals) < 1
