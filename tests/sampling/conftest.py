"""A run with three classes, and its generator."""

from pathlib import Path

import pytest

import pggan
from pggan.cli.compose import compose
from pggan.config.train import TrainConfig
from pggan.config.validation import validated
from pggan.run import train


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory, labelled_data) -> Path:
    """A run stopped while fading in 16x16, with three classes."""
    path = tmp_path_factory.mktemp("run")
    overrides = [
        f"data.path={labelled_data}",
        "data.labels=true",
        f"run_dir={path}",
        "schedule.final_resolution=16",
        "schedule.stable_images=16",
        "schedule.fade_images=32",
        "schedule.batch=8",
        "schedule.total_images=96",
        "model.fmap_max=8",
        "evaluation.metrics=[]",
        "devices=cpu",
    ]
    assert train.run(validated(TrainConfig, compose("train", overrides))) == 0
    return path


@pytest.fixture(scope="session")
def generator(run_dir):
    return pggan.load(run_dir, "cpu")
