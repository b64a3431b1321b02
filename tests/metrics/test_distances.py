"""Nearest neighbours, a block of rows at a time."""

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


def test_a_row_is_not_its_own_neighbour(features, monkeypatch):
    monkeypatch.setattr(distances, "ROWS", 7)
    points = features[0]
    for part in (points, points[:20]):  # all of them, or the first ones
        _, rows = distances.nearest(part, points, same=True)
        assert not (rows[:, 0] == torch.arange(len(part))).any()
