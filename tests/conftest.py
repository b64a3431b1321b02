"""Small data and small configurations that run in a second."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

# Before torch is imported: results depend on the number of threads, and for networks this small one is fastest.
os.environ["OMP_NUM_THREADS"] = "1"

from pggan.cli.compose import compose
from pggan.config import TrainConfig
from pggan.core.validation import validated
from pggan.data.format.pyramid import ImagePyramid
from pggan.data.format.writer import PyramidWriter


def write_pyramid(
    path: Path, *, resolution: int = 16, images: int = 48, channels: int = 3, classes: int = 0
) -> ImagePyramid:
    """Smooth random blobs, different from each other, always the same."""
    random = np.random.default_rng(0)
    names = [f"class-{number}" for number in range(classes)] or None
    with PyramidWriter(path, resolution, channels, {"kind": "test"}, class_names=names) as writer:
        for number in range(images):
            corners = random.integers(0, 256, (2, 2, channels)).repeat(resolution // 2, 0).repeat(resolution // 2, 1)
            noise = random.integers(-20, 20, (resolution, resolution, channels))
            image = (corners + noise).clip(0, 255).astype(np.uint8)
            writer.add(image, number % classes if classes else None)
    return ImagePyramid(path)


@pytest.fixture(scope="session")
def make_pyramid() -> Callable[..., ImagePyramid]:
    return write_pyramid


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pyramid of 48 colour images up to 16x16."""
    path = tmp_path_factory.mktemp("data") / "toy"
    write_pyramid(path)
    return path


@pytest.fixture(scope="session")
def labelled_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pyramid of 48 images in 3 classes up to 16x16."""
    path = tmp_path_factory.mktemp("data") / "labelled"
    write_pyramid(path, classes=3)
    return path


TINY = [
    "schedule.final_resolution=16",
    "schedule.stable_images=32",
    "schedule.fade_images=32",
    "schedule.batch=8",
    "model.fmap_max=8",
    "monitor.tick_images=32",
    "monitor.grid_images=80",
    "monitor.grid=3x2",
    "checkpoint.every_images=128",
    "devices=cpu",
]


@pytest.fixture(scope="session")
def tiny_overrides(toy_data: Path) -> list[str]:
    """Overrides for a run of 160 images, 4x4 to 16x16, that takes about a second."""
    return [*TINY, f"data.path={toy_data}"]


@pytest.fixture(scope="session")
def tiny_config(tiny_overrides: list[str]) -> Callable[..., TrainConfig]:
    """The configuration of that run, with more overrides."""

    def build(*overrides: Any) -> TrainConfig:
        return validated(TrainConfig, compose("train", [*tiny_overrides, *map(str, overrides)]))

    return build
