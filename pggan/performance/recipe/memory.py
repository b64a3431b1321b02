"""Whether networks fit into memory."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import torch

from pggan.config import TrainConfig
from pggan.core.architecture import MIN_RESOLUTION
from pggan.core.errors import UserError
from pggan.core.schedule import Phase
from pggan.networks.features.backbone import LITE0
from pggan.optim.batch_partition import BatchPartition
from pggan.performance.recipe.data_facts import DataFacts
from pggan.performance.recipe.situation import FEATURES_FROM, NetworkSizes
from pggan.training.build import memory_for_steps
from pggan.training.memory_fit import fit_memory
from pggan.training.trainer_factory import TrainerFactory


def fits_into_memory(
    config: TrainConfig, facts: DataFacts, device: torch.device, ranks: int
) -> Callable[[NetworkSizes], bool]:
    """Whether networks can be trained at their resolution in the memory that is free on `device` now.

    The smallest micro-batches decide, since larger batches are passed in as many of them as they need.
    Raises UserError for a configuration with which nothing can be trained.
    """
    free, images = memory_for_steps(device, ranks), config.model.stddev_group * ranks
    factory, partition = TrainerFactory.of(config, device, ranks), BatchPartition.of(config, [images], ranks)

    @cache
    def fits(networks: NetworkSizes) -> bool:
        side = networks.resolution
        model = replace(config.model, fmap_base=networks.fmap_base, fmap_max=networks.fmap_max)
        if networks.features:
            model = replace(model, features=LITE0, features_from=FEATURES_FROM)
        fading = side > MIN_RESOLUTION  # needs the most
        phase = Phase(0, side, fading, 0.5 if fading else 1.0, 0, images, images, 0.0, 0.0, missing_levels=0)
        try:
            fit_memory(
                model.architecture(side, facts.channels, facts.num_classes),
                [phase],
                factory,
                device=device,
                free=free,
                partition=partition,
            )
        except UserError:
            return False
        return True

    return fits
