"""The Frechet distance, against worked examples and another program."""

import pytest
import torch

from pggan.core.rng import generator_for
from pggan.metrics.fid import FrechetInceptionDistance, frechet_distance


def test_it_is_that_of_gaussians_in_one_dimension():
    """(m1 - m2)^2 + (s1 - s2)^2"""
    x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([[2.0], [8.0]])
    assert frechet_distance(x, y) == pytest.approx(5**2 + (2**0.5 - 18**0.5) ** 2)


def test_a_set_has_no_distance_to_itself_even_with_fewer_images_than_features(features):
    few = features[0][:3]
    assert frechet_distance(few, few) == pytest.approx(0, abs=1e-13)  # sums of 18 numbers of about 1


def test_a_note_tells_of_too_few_images_for_the_features(task_of, make_pyramid, tmp_path):
    """Of N images, covariances have at most N - 1 dimensions."""
    task = task_of(None, make_pyramid(tmp_path / "data"))
    notes = []
    for images in (20, 21):
        metric = FrechetInceptionDistance(task, images)
        metric.compare(torch.randn(images, 20), torch.randn(images, 20))
        notes.append(metric.notes())
    (note,), none = notes
    assert note.startswith("fid compares 20 images by 20 features: ")
    assert none == []


def test_it_is_that_of_eigenvalues_where_covariances_are_singular():
    """Of 12 and 15 images by 40 features.

    Those of S1 S2 that are 0 come out as rounding, up to 1e-13 of the largest, and roots of 28 of them are added: 1e-5.
    """
    x, y = (torch.randn(count, 40, generator=generator_for(0, "few", count)).double() for count in (12, 15))
    roots = torch.linalg.eigvals(x.T.cov() @ y.T.cov()).sqrt().real.sum()
    expected = (x.mean(0) - y.mean(0)).square().sum() + x.T.cov().trace() + y.T.cov().trace() - 2 * roots
    assert frechet_distance(x, y) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.xdist_group("torchvision")  # torchmetrics imports it, which takes seconds
def test_it_is_that_of_torchmetrics_on_the_same_features(features):
    """Which takes the root of the eigenvalues: of a well-conditioned product, they lose few digits."""
    from torchmetrics.image.fid import _compute_fid

    x, y = (part.double() for part in features)
    theirs = _compute_fid(x.mean(0), x.T.cov(), y.mean(0), y.T.cov())
    assert frechet_distance(x, y) == pytest.approx(float(theirs), rel=1e-9)
