"""Duplicates among fakes."""

import pytest
import torch

from pggan.metrics import distances
from pggan.metrics.collect import feed
from pggan.metrics.duplicates import Duplicates, share_of_close_pairs
from pggan.metrics.images import RealImages


def test_the_share_counts_pairs_of_different_images(monkeypatch):
    monkeypatch.setattr(distances, "ROWS", 2)
    points = torch.tensor([[0.0], [0.5], [1.0], [10.0], [10.0]])  # of ten pairs, 0-0.5, 0.5-1 and 10-10 are close
    assert share_of_close_pairs(points, 0.6) == pytest.approx(3 / 10)


class Repeating:
    """A generator that draws three images over and over."""

    def __init__(self, reals):
        self.reals = reals

    def read(self, indices):
        return self.reals.read([number % 3 for number in indices])


def test_a_generator_that_repeats_itself_stands_out(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=40)
    task = task_of(Repeating(RealImages(pyramid, 16)), pyramid)
    metric = Duplicates(task, 30)
    feed(task.fakes, metric.collectors(), task.partition, "", task.progress)
    values = metric.values()
    assert values["duplicates@pixels-30"] == pytest.approx(3 * 45 / 435)  # three tens, of 435 pairs
    assert 0 < values["duplicates_reals@pixels-30"] < 0.05
    assert values["duplicate_distance@pixels-30"] > 0
