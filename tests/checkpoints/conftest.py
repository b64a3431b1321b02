"""A finished run to read from, and one to damage."""

import shutil
from pathlib import Path

import pytest

from pggan.checkpoints.header import COMPONENTS
from pggan.checkpoints.read import newest_checkpoint
from pggan.checkpoints.write import Snapshot


@pytest.fixture
def run_dir(finished_run, tmp_path) -> Path:
    """A finished run with checkpoints of 128 and 160 images, to write to."""
    return Path(shutil.copytree(finished_run, tmp_path / "run"))


@pytest.fixture
def newest(run_dir) -> Path:
    """Its newest checkpoint."""
    return run_dir / "checkpoints" / "000000160"


@pytest.fixture
def snapshot_of():
    """A snapshot with the newest state of a run, under another image count."""

    def take(run_dir: Path, images: int, milestone: bool = False, best: dict[str, float] | None = None) -> Snapshot:
        checkpoint, _ = newest_checkpoint(run_dir)
        state_dicts = {component: checkpoint.load(component) for component in COMPONENTS}
        stage = {key: checkpoint.header[key] for key in ("phase", "resolution", "alpha")}
        notes = {"config": {}, "milestone": milestone, "best": best}
        return Snapshot(state_dicts, images, 2, checkpoint.architecture, stage, notes)

    return take
