"""The recipe that fits images, device and hours.

Its rules are taken from the lab book, for networks of up to 64 feature maps on CPUs (demo and ORL photographs);
from the official preset for one GPU, from 512x512 on; and between them from StyleGAN2-ADA's automatic configuration
(Karras et al. 2020: gamma = 0.0002 resolution^2 / batch, learning rates of 0.0025 for 512 feature maps).
"""

from typing import NamedTuple

from pggan.core.schedule import PerResolution
from pggan.performance.recipe.batch import batch_sizes, choose_batch, require_images
from pggan.performance.recipe.choices import Choice, Choices
from pggan.performance.recipe.lengths import choose_lengths, require_time
from pggan.performance.recipe.situation import SHORT_RUN, NetworkSizes, Situation
from pggan.performance.recipe.sizes import choose_sizes
from pggan.performance.recipe.training import (
    choose_augmentation,
    choose_channels,
    choose_layers,
    choose_loss,
    choose_rates,
    choose_reports,
)


class ChosenRecipe(NamedTuple):
    """All keys that were not given, and what decides the time of their steps."""

    choices: list[Choice]
    sizes: NetworkSizes
    batch: PerResolution


def choose_recipe(situation: Situation) -> ChosenRecipe:
    """Choose all keys that are not given.

    Raises UserError where the images do not suffice for a batch, or the time for a step of every phase.
    """
    choices = Choices(situation.given)
    require_images(situation)
    sizes = choose_sizes(situation, choices)
    batch: PerResolution = batch_sizes(situation, sizes.resolution)
    each = situation.costs(sizes, batch)
    require_time(situation, sizes.resolution, batch, each)
    short = choose_lengths(situation, Choices(situation.given), sizes, batch, each) < SHORT_RUN
    batch = choose_batch(situation, choices, sizes.resolution, short=short)
    each = situation.costs(sizes, batch)
    images = choose_lengths(situation, choices, sizes, batch, each)
    loss = choose_loss(situation, choices, sizes.resolution, batch)
    choose_rates(situation, choices, sizes)
    choose_layers(situation, choices, sizes)
    choose_augmentation(situation, choices, loss, images)
    choose_channels(situation, choices)
    choose_reports(situation, choices, images)
    return ChosenRecipe(choices.found, sizes, batch)
