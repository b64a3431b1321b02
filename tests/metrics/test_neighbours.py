"""Copies of training images are found, and shown beside them."""

import numpy as np
import pytest
import torch

from pggan.metrics.features import NearestNeighbours
from pggan.metrics.images import RealImages, feed
from tests.pyramids import write_pyramid


class Mirror:
    """A generator that draws the training images, mirrored."""

    def __init__(self, reals):
        self.reals = reals

    def read(self, indices):
        return self.reals.read(indices)[:, :, ::-1].copy()


class Noise:
    """A generator that draws nothing like the data."""

    def read(self, indices):
        return np.stack([np.random.default_rng(n).integers(0, 256, (16, 16, 3), np.uint8) for n in indices])


class Mixed(Mirror, Noise):
    """A generator that draws noise for the first ten seeds, then training images."""

    def read(self, indices):
        return np.where(np.array(indices)[:, None, None, None] < 10, Noise.read(self, indices), super().read(indices))


def measured(task, count):
    metric = NearestNeighbours(task, count)
    feed(task.fakes, [*task.collectors.values()], task.partition, "")
    return metric, metric.values()


def test_a_generator_that_copies_is_told_from_one_that_does_not(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=40)
    _, copying = measured(task_of(RealImages(pyramid, 16), pyramid), 10)
    assert copying["copies@pixels-10"] == 1
    assert copying["neighbour_distance@pixels-10"] < 1e-6 < copying["neighbour_distance_reals@pixels-10"]
    _, drawing = measured(task_of(Noise(), pyramid), 10)
    assert drawing["copies@pixels-10"] == 0


def test_data_of_one_image_has_copies_and_no_numbers_that_are_nan(task_of, tmp_path):
    pyramid = write_pyramid(tmp_path / "data", [np.full((16, 16, 3), 90, np.uint8)] * 20, {})
    for fakes, copies in ((RealImages(pyramid, 16), 1), (Noise(), 0)):
        _, found = measured(task_of(fakes, pyramid), 20)
        assert found["copies@pixels-20"] == copies
        assert all(np.isfinite(value) for value in found.values())


def test_a_mirrored_training_image_is_a_copy_and_shown_beside_the_one_it_copies(task_of, make_pyramid, tmp_path):
    """And a real's own mirror is no other real."""
    pyramid = make_pyramid(tmp_path / "data", images=40)
    metric, values = measured(task_of(Mirror(RealImages(pyramid, 16)), pyramid), 20)
    assert values["copies@pixels-20"] == 1
    assert values["neighbour_distance@pixels-20"] < 1e-6
    stored = pyramid.read(16, metric.task.reals.order).astype(float).reshape(40, 16, 16, 3) / 255
    both = [abs(stored[:20, None] - other[None]) for other in (stored, stored[:, :, ::-1])]
    distances = np.minimum(*((one**2).mean((2, 3, 4)) ** 0.5 for one in both))
    np.fill_diagonal(distances, np.inf)
    among = np.median(np.sort(distances.min(1))[9])  # PyTorch's median is the lower of the two in the middle
    # Features are in float32, and distances the roots of differences of products.
    assert values["neighbour_distance_reals@pixels-20"] == pytest.approx(among, rel=1e-5)
    picture = metric.pictures()["neighbours"]
    assert picture.shape == (8 * 16, 5 * 16, 3)  # a fake, and four images as they are stored
    assert np.array_equal(picture[:, :16], picture[:, 16:32][:, ::-1])
    mixed, _ = measured(task_of(Mixed(RealImages(pyramid, 16)), pyramid), 20)
    picture = mixed.pictures()["neighbours"]  # begins with the worst copies
    assert np.array_equal(picture[:, :16], picture[:, 16:32][:, ::-1])


def test_all_training_images_are_looked_at(task_of, make_pyramid, tmp_path):
    pyramid = make_pyramid(tmp_path / "data", images=40)
    metric, _ = measured(task_of(RealImages(pyramid, 16, 30), pyramid), 10)
    nearest = metric.nearest[:, 0]
    assert torch.equal(nearest, torch.arange(30, 40))
