"""The Frechet distance, against worked examples and another program."""

import pytest
import torch

from pggan.metrics.fid import frechet_distance


def test_it_is_that_of_gaussians_in_one_dimension():
    """(m1 - m2)^2 + (s1 - s2)^2"""
    x, y = torch.tensor([[-1.0], [1.0]]), torch.tensor([[2.0], [8.0]])
    assert frechet_distance(x, y) == pytest.approx(5**2 + (2**0.5 - 18**0.5) ** 2)


def test_a_set_has_no_distance_to_itself_even_with_fewer_images_than_features(features):
    few = features[0][:3]
    assert frechet_distance(few, few) == pytest.approx(0, abs=1e-13)  # sums of 18 numbers of about 1


@pytest.mark.xdist_group("torchvision")  # torchmetrics imports it, which takes seconds
def test_it_is_that_of_torchmetrics_on_the_same_features(features):
    """Which takes the root of the eigenvalues: of a well-conditioned product, they lose few digits."""
    from torchmetrics.image.fid import _compute_fid

    x, y = (part.double() for part in features)
    theirs = _compute_fid(x.mean(0), x.T.cov(), y.mean(0), y.T.cov())
    assert frechet_distance(x, y) == pytest.approx(float(theirs), rel=1e-9)
