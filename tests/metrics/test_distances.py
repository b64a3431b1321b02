"""Nearest neighbours, a block of rows at a time."""

import pytest
import torch

from pggan.metrics import distances


def test_nearest_are_those_of_all_distances_whatever_the_blocks(features, monkeypatch):
    a, b = features
    everything = torch.stack([(a.double()[n] - b.double()).norm(dim=1) for n in range(len(a))])
    wanted = everything.sort(1)
    monkeypatch.setattr(distances, "ROWS", 7)
    found, rows = distances.nearest(a, b, 3)
    # The root halves the 53 bits of squares of about 20: 2^-26 of lengths of about 5.
    assert torch.allclose(found, wanted.values[:, :3], rtol=0, atol=5 * 2**-24)
    assert torch.equal(rows, wanted.indices[:, :3])


def test_the_same_image_stored_twice_is_no_different_one(monkeypatch):
    """Of features with a mean length of 2.7, 1e-6 is rounding and 0.001 is not."""
    monkeypatch.setattr(distances, "ROWS", 2)
    points = torch.tensor([[1.0], [1.0 + 1e-6], [2.0], [5.0], [3.5], [3.501]])
    found, repeated = distances.nearest_different(points, points[:5])
    assert found.tolist() == pytest.approx([1, 1, 1, 1.499, 0.001], rel=0.01)
    assert repeated == 2
    found, repeated = distances.nearest_different(points, points[:5], points[[2, 2, 2, 4, 4]])  # mirrored
    assert found.tolist() == pytest.approx([1.5, 1.5, 1, 0.001, 0.001], rel=0.01)
    assert repeated == 3  # mirrored, the first two are that at 2, too, and that at 5 is the one at 3.5
    found, repeated = distances.nearest_different(torch.zeros(5, 3), torch.zeros(5, 3))
    assert (found.tolist(), repeated) == ([0] * 5, 5)


def test_a_row_is_not_its_own_neighbour(features, monkeypatch):
    monkeypatch.setattr(distances, "ROWS", 7)
    points = features[0]
    for part in (points, points[:20]):  # all of them, or the first ones
        _, rows = distances.nearest(part, points, same=True)
        assert not (rows[:, 0] == torch.arange(len(part))).any()
