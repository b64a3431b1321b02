"""Small sets of images, and an extractor without weights."""

from collections.abc import Callable

import pytest
import torch

from pggan.core.rng import generator_for
from pggan.data.pyramid import ImagePyramid
from pggan.distributed.process_group import ProcessGroup
from pggan.metrics import Task
from pggan.metrics.extractors import load_extractor
from pggan.metrics.images import RankPartition, RealImages


@pytest.fixture(scope="session")
def alone() -> ProcessGroup:
    return ProcessGroup.single_process(torch.device("cpu"))


@pytest.fixture
def task_of(alone) -> Callable[..., Task]:
    """A task with the pixel extractor: fakes beside the reals of a pyramid, at its highest level, in blocks of 4."""

    def build(fakes: RealImages | None, pyramid: ImagePyramid) -> Task:
        reals, partition = RealImages(pyramid, pyramid.resolution), RankPartition(alone, 4)
        return Task(fakes or reals, reals, partition, load_extractor("pixels", alone.device))

    return build


@pytest.fixture(scope="session")
def features() -> tuple[torch.Tensor, torch.Tensor]:
    """Features [1100, 6] and [1200, 6] of two overlapping clouds, float32."""
    draws = [torch.randn(count, 6, generator=generator_for(0, "cloud", count)) for count in (1100, 1200)]
    return draws[0], draws[1] * 1.3 + 0.4
