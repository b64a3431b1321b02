"""The recipes that are named after a method have that method's loss, penalty, rates, averages and augmentation."""

import pytest

from pggan.config import TrainConfig
from pggan.config.validation import validated
from tests.composed import composed


def config(name):
    return validated(TrainConfig, composed("train", [f"experiment={name}"]))


def test_paper_is_as_published():
    """Appendix A.1: WGAN-GP with drift and a penalty at every update, Adam, and an average per update."""
    paper = config("paper")
    published = {"name": "wgan_gp", "penalty_weight": 10, "target": 1, "reg_interval": 1}
    assert {key: getattr(paper.loss, key) for key in published} == published
    schedule = paper.schedule
    assert (schedule.learning_rate_g, schedule.stable_images, schedule.fade_images) == (0.001, 800_000, 800_000)
    assert paper.ema.decay_per_update == 0.999
    assert paper.augmentation.name == "none"
    assert not any((paper.model.blur, paper.model.bilateral, paper.model.residual, paper.model.features))


@pytest.mark.parametrize(
    ("name", "loss", "interval", "rate", "augmentation"),
    [
        ("modern", "logistic", 16, 0.0025, "none"),
        ("relativistic", "relativistic", 1, 0.0025, "none"),
        ("small_data", "logistic", 8, 0.006, "ada"),
    ],
)
def test_later_recipes_are_those_of_their_papers_but_for_what_they_say(name, loss, interval, rate, augmentation):
    recipe = config(name)
    assert (recipe.loss.name, recipe.loss.reg_interval) == (loss, interval)
    assert (recipe.schedule.learning_rate_g, recipe.schedule.learning_rate_d) == (rate, rate)
    assert recipe.augmentation.name == augmentation
    assert recipe.ema.rampup is not None
    assert recipe.loss.gamma == {"modern": 1.6, "relativistic": 1.0, "small_data": 12}[name]
