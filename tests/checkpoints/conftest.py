"""A finished run to read from, one to damage, and one of an earlier version."""

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from pggan.checkpoints.read import COMPONENTS, checksum_of, newest_checkpoint
from pggan.checkpoints.write import Snapshot
from pggan.core.atomic_io import file_sha256


def reseal(directory: Path, **changes: object) -> None:
    """Change what a state.json says, and give it right checksums, as an attacker would."""
    header = json.loads((directory / "state.json").read_text())
    for key, value in changes.items():
        header[key] = header[key] | value if isinstance(value, dict) else value
    for name in header["files"] if isinstance(header["files"], dict) else ():
        if (directory / name).is_file():
            header["files"][name] = file_sha256(directory / name)
    header["sha256"] = checksum_of(header)
    (directory / "state.json").write_text(json.dumps(header))


@pytest.fixture
def newest(run_dir) -> Path:
    """Its newest checkpoint."""
    return run_dir / "checkpoints" / "000000160"


@pytest.fixture
def earlier(run_dir) -> Path:
    """The run with checkpoints as version 4 wrote them: a file for each component."""
    for directory in (run_dir / "checkpoints").iterdir():
        checkpoint, _ = newest_checkpoint(run_dir)
        for component in COMPONENTS:
            about = {key: checkpoint.header[key] for key in ("images", "resolution", "alpha", "architecture")}
            save_file(checkpoint.load(component), directory / f"{component}.safetensors", {"pggan": json.dumps(about)})
        for name in ("weights.safetensors", "state.safetensors"):
            (directory / name).unlink()
        files = {f"{name}.safetensors": file_sha256(directory / f"{name}.safetensors") for name in COMPONENTS}
        header = {**json.loads((directory / "state.json").read_text()), "version": 4, "files": files}
        (directory / "state.json").write_text(json.dumps({**header, "sha256": checksum_of(header)}))
    return run_dir


@pytest.fixture
def snapshot_of():
    """A snapshot with the newest state of a run, under another image count."""

    def take(run_dir: Path, images: int, best: dict[str, float] | None = None) -> Snapshot:
        checkpoint, _ = newest_checkpoint(run_dir)
        state_dicts = {component: checkpoint.load(component) for component in COMPONENTS}
        return Snapshot(state_dicts, checkpoint.header | {"images": images, "best": best})

    return take
