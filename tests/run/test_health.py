"""How varied fakes are, beside reals."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from pggan.core.rng import generator_for
from pggan.data.pyramid import ImagePyramid
from pggan.losses.base import Loss
from pggan.networks.networks import Generator
from pggan.run import health
from pggan.run.health import Health, mean_nearest, relative_diversity
from tests.definitions import variant
from tests.losses.critics import LOGISTIC, RELATIVISTIC, WGAN_GP


def grey(*levels: int) -> np.ndarray:
    return np.array(levels, np.uint8).repeat(8 * 8 * 3).reshape(-1, 8, 8, 3)


def test_the_distance_to_the_nearest_other_image_is_that_of_their_pixels():
    assert mean_nearest(grey(0, 51, 204)) == pytest.approx((51 + 51 + 153) / 3 / 255, abs=1e-6)


def test_copies_of_a_few_images_have_no_diversity_however_different_those_are():
    # Root of products in float64 of features in float32: see `pggan.metrics.distances`.
    assert mean_nearest(grey(0, 255, 0, 255, 128, 128)) < 1e-6
    assert mean_nearest(grey(7)) == 0


@pytest.fixture
def g():
    network = Generator(variant(resolution=16, fmap_max=8))
    for number, weight in enumerate(network.weights):
        torch.nn.init.normal_(weight, generator=generator_for(0, "weights", number))
    return network.requires_grad_(False)


def test_fakes_that_are_all_the_same_have_none_and_others_some(g, toy_data, tiny_config):
    phase, pyramid = tiny_config().schedule.build().at(159), ImagePyramid(toy_data)
    assert relative_diversity(g, phase, pyramid) > 0.05
    for weight in g.weights:
        weight.zero_()
    assert relative_diversity(g, phase, pyramid) < 1e-5


def test_reals_that_are_all_the_same_are_no_measure(g, tiny_config, make_pyramid, tmp_path):
    one = make_pyramid(tmp_path / "one", images=1)
    assert relative_diversity(g, tiny_config().schedule.build().at(159), one) is None


def health_of(loss: Loss) -> Health:
    config = SimpleNamespace(monitor=SimpleNamespace(grid_images=80))
    return Health(SimpleNamespace(pyramid=None, config=config), loss, 0)


def state_at(g: Generator, images: int) -> SimpleNamespace:
    return SimpleNamespace(images=images, g=SimpleNamespace(network=g))


def test_diversity_is_measured_at_ticks_after_a_grid(g, monkeypatch):
    monkeypatch.setattr(health, "relative_diversity", lambda *_: 0.5)
    measured, ticks = health_of(WGAN_GP), range(32, 225, 32)

    def found(ticks: range) -> list[int]:
        return [images for images in ticks if measured.at_tick(state_at(g, images), None, {})]

    assert found(ticks) == [96, 160]  # grids at 80 and 160
    measured.restart(64)  # a rollback
    assert found(range(96, 225, 32)) == [96, 160]


def test_the_mean_sign_of_reals_is_known_where_scores_are_log_odds_by_themselves_or_in_pairs(g):
    reals, fakes = np.array([2.0, -1.0, 0.5, 3.0], np.float32), np.array([3.0, -2.0, 1.0, 4.0], np.float32)
    scores = {"scores/reals": reals, "scores/fakes": fakes}
    assert health_of(LOGISTIC).at_tick(state_at(g, 8), None, scores) == {"health/reals_sign": 0.5}
    assert health_of(RELATIVISTIC).at_tick(state_at(g, 8), None, scores) == {"health/reals_sign": -0.5}
    for loss, at_tick in ((LOGISTIC, {}), (WGAN_GP, scores)):
        assert health_of(loss).at_tick(state_at(g, 8), None, at_tick) == {}
