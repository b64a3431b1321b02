"""A run with three classes, and its generator."""

from pathlib import Path

import pytest

import pggan
from pggan.run import train


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory, tiny_config, labelled_data) -> Path:
    """A run stopped while fading in 16x16, with three classes."""
    path = tmp_path_factory.mktemp("run")
    data = [f"data.path={labelled_data}", "data.labels=true"]
    schedule = ["schedule.stable_images=16", "schedule.fade_images=32", "schedule.batch=8", "schedule.total_images=96"]
    assert train.run(tiny_config(f"run_dir={path}", *data, *schedule)) == 0
    return path


@pytest.fixture(scope="session")
def generator(run_dir):
    return pggan.load(run_dir, "cpu")
