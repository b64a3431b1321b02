"""What the injected faults have in common."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def closed_terminals_are_noticed() -> Iterator[None]:
    """Without this, tests and the commands that they start would inherit from `nohup` that SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """A file system of 2 MiB and 128 files, where mounting is allowed."""
    folder = tmp_path / "small-disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=128", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting a tmpfs needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
