"""Duplicates among fakes."""

import numpy as np
import pytest
import torch

from pggan.data.writer import write_pyramid
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


def measured(task, count):
    metric = Duplicates(task, count)
    feed(task.fakes, metric.collectors(), task.partition, "", task.progress)
    return metric.values()


def test_a_generator_that_repeats_itself_stands_out_where_the_data_repeats_images_too(task_of, make_pyramid, tmp_path):
    """A tenth of the images are there twice, and the generator draws three others."""
    images = make_pyramid(tmp_path / "once", images=36).read(16, np.arange(36))
    pyramid = write_pyramid(tmp_path / "data", [*images, *images[:4]], {})
    values = measured(task_of(Repeating(RealImages(pyramid, 16)), pyramid), 40)
    assert values["duplicates@pixels-40"] >= (78 + 78 + 91) / 780  # 13, 13 and 14 times the same, of 780 pairs
    assert values["duplicates@pixels-40"] < 0.5
    assert values["duplicates_reals@pixels-40"] < 0.05
    assert values["duplicate_distance@pixels-40"] > 0.01


def test_data_of_one_image_has_duplicates_alone(task_of, tmp_path):
    for level in (0, 90):
        pyramid = write_pyramid(tmp_path / str(level), [np.full((16, 16, 3), level, np.uint8)] * 20, {})
        values = measured(task_of(None, pyramid), 20)
        assert (values["duplicates@pixels-20"], values["duplicates_reals@pixels-20"]) == (1, 1)
        assert 0 <= values["duplicate_distance@pixels-20"] < 1e-4


def test_a_generator_that_repeats_itself_stands_out(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=40)
    values = measured(task_of(Repeating(RealImages(pyramid, 16)), pyramid), 30)
    assert values["duplicates@pixels-30"] == pytest.approx(3 * 45 / 435)  # three tens, of 435 pairs
    assert 0 < values["duplicates_reals@pixels-30"] < 0.05
    assert values["duplicate_distance@pixels-30"] > 0
