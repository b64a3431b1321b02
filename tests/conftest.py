"""Small data and small configurations that run in a second."""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

# Before torch is imported: results depend on the number of threads, and for networks this small one is fastest.
os.environ["OMP_NUM_THREADS"] = "1"

from pggan.cli import compose
from pggan.config.train import TrainConfig
from pggan.data.pyramid import ImagePyramid
from tests import pyramids
from tests.composed import composed, train_config

settings.register_profile("fixed", deadline=None, derandomize=True)  # the same examples on every machine, however slow
settings.load_profile("fixed")


@pytest.fixture(scope="session", autouse=True)
def kept_files() -> Iterator[None]:
    """Commands in this process compose from files that were kept."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "compose", composed)
        yield


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with many slow tests come first, so that no worker has one of them left when the others are done."""
    slow = Counter(item.path for item in items if item.get_closest_marker("slow"))
    items.sort(key=lambda item: -slow[item.path])


def write_pyramid(
    path: Path, *, resolution: int = 16, images: int = 48, channels: int = 3, classes: int = 0
) -> ImagePyramid:
    """Smooth random blobs, different from each other, always the same."""
    random = np.random.default_rng(0)
    names = [f"class-{number}" for number in range(classes)] or None
    blobs = []
    for _ in range(images):
        corners = random.integers(0, 256, (2, 2, channels)).repeat(resolution // 2, 0).repeat(resolution // 2, 1)
        noise = random.integers(-20, 20, (resolution, resolution, channels))
        blobs.append((corners + noise).clip(0, 255).astype(np.uint8))
    labels = [number % classes for number in range(images)] if classes else ()
    return pyramids.write_pyramid(path, blobs, {"kind": "test"}, class_names=names, labels=labels)


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
    "evaluation.metrics=[]",  # or a clock that is set forward in a test would bring some
    "checkpoint.every_images=64",
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
        return train_config(*tiny_overrides, *overrides)

    return build


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory, tiny_config: Callable[..., TrainConfig]) -> Path:
    """A run of 160 images with checkpoints at 128 and 160; not to be written to."""
    from pggan.run import train

    run_dir = tmp_path_factory.mktemp("finished") / "checkpoints" / "run"  # this folder may have any name
    assert train.run(tiny_config(f"run_dir={run_dir}")) == 0
    return run_dir


@pytest.fixture
def run_dir(finished_run: Path, tmp_path: Path) -> Path:
    """A finished run with checkpoints of 128 and 160 images, to write to."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


def watch_steps(patch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], object]], None]:
    """What calls a function with the state after every training step, instead of the function before."""
    from pggan.training.trainer import Trainer

    step = Trainer.step

    def install(function: Callable[[Any], object]) -> None:
        def watched_step(self: Trainer, *arguments: Any) -> Any:
            metrics = step(self, *arguments)
            function(self.state)
            return metrics

        patch.setattr(Trainer, "step", watched_step)

    return install


@pytest.fixture
def after_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any], object]], None]:
    """Call a function with the state after every training step: `after_step(function)`."""
    return watch_steps(monkeypatch)
