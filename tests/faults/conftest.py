"""What the injected faults have in common."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pggan.run import train
from pggan.training.step import Stepper


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 1 MiB and 64 files, where mounting is allowed."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,nr_inodes=64", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def after_step(monkeypatch):
    """Call a function with the state after every training step: `after_step(function)`."""
    step = Stepper.step

    def install(function) -> None:
        def watched_step(self, *arguments):
            watched = step(self, *arguments)
            function(self.state)
            return watched

        monkeypatch.setattr(Stepper, "step", watched_step)

    return install


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory, tiny_config) -> Path:
    """A run of 160 images with checkpoints at 128 and 160; not to be written to."""
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    train.run(tiny_config(f"run_dir={run_dir}"))
    return run_dir
