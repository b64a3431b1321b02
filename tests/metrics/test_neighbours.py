"""Copies of training images are found, and shown beside them."""

import numpy as np
import pytest
import torch

from pggan.data.format.writer import write_pyramid
from pggan.metrics.collect import feed
from pggan.metrics.images import RealImages
from pggan.metrics.neighbours import NearestNeighbours


def gray(level):
    return np.full((16, 16, 3), level, np.uint8)


class Noise:
    """A generator that draws nothing like the data."""

    def read(self, indices):
        return np.stack([np.random.default_rng(n).integers(0, 256, (16, 16, 3), np.uint8) for n in indices])


def measured(task, count):
    metric = NearestNeighbours(task, count)
    feed(task.fakes, metric.collectors(), task.partition, "", task.progress)
    return metric, metric.values()


def test_a_generator_that_copies_is_told_from_one_that_does_not(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=40)
    _, copying = measured(task_of(RealImages(pyramid, 16), pyramid), 10)
    assert copying["copies@pixels-10"] == 1
    assert copying["neighbour_distance@pixels-10"] < 1e-6 < copying["neighbour_distance_reals@pixels-10"]
    _, drawing = measured(task_of(Noise(), pyramid), 10)
    assert drawing["copies@pixels-10"] == 0


def test_a_copy_is_closer_than_nearly_all_training_images_are_to_each_other(task_of, tmp_path):
    """Of 22 grey images two are 1 apart, the others 10, as is their median; fakes are 4 beside one of them."""
    levels = [0, 1, *range(11, 202, 10)]
    pyramid = write_pyramid(tmp_path / "data", [gray(level) for level in levels], {})

    class Beside:
        def read(self, indices):
            return np.stack([gray(levels[2 + number % 20] + 4) for number in indices])

    _, found = measured(task_of(Beside(), pyramid), 22)
    assert found["copies@pixels-22"] == 0
    assert found["neighbour_distance@pixels-22"] == pytest.approx(0.4 * found["neighbour_distance_reals@pixels-22"])


def test_the_picture_shows_fakes_beside_the_images_they_are_nearest_to(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=40)
    metric, _ = measured(task_of(RealImages(pyramid, 16), pyramid), 20)
    picture = metric.picture()
    # One kind of features here: a fake, a gap, four images; one of the closest six is also that at a quarter.
    assert picture.shape == (9 * 64, 5 * 64 + 4, 3)
    for row in range(9):
        strip = picture[64 * row : 64 * row + 64]
        assert np.array_equal(strip[:, :64], strip[:, 68:132])  # the fake, and the image that it copies


def test_all_training_images_are_looked_at(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=40)
    metric, _ = measured(task_of(RealImages(pyramid, 16, 30), pyramid), 10)
    nearest = metric.found["pixels"][1][:, 0]
    assert torch.equal(nearest, torch.arange(30, 40))
