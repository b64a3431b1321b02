"""Checkpoints are whole or passed over, and nothing in them is trusted."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from pggan import loop
from pggan.checkpoint import Broken, load_generator, newest_checkpoint, open_checkpoint
from pggan.errors import UserError
from pggan.inspect import facts_of_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, toy_data):
    """A finished run with two checkpoints."""
    from pggan.cli import compose
    from pggan.config import TrainConfig
    from pggan.schema import validated

    run_dir = tmp_path_factory.mktemp("run")
    overrides = [
        f"data.path={toy_data}",
        f"run_dir={run_dir}",
        "schedule.final_resolution=8",
        "schedule.stable_images=16",
        "schedule.fade_images=16",
        "schedule.batch=8",
        "model.fmap_max=8",
        "checkpoint.every_images=32",
        "devices=cpu",
    ]
    loop.run(validated(TrainConfig, compose("train", overrides)))
    return run_dir


@pytest.fixture
def run_dir(finished, tmp_path):
    return Path(shutil.copytree(finished, tmp_path / "run"))


def newest(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "000000048"


def test_the_newest_whole_checkpoint_is_found(run_dir):
    checkpoint, broken = newest_checkpoint(run_dir)
    assert checkpoint is not None
    assert (checkpoint.images, broken) == (48, [])


@pytest.mark.parametrize("size", [0, 1, 100, -1])
@pytest.mark.parametrize("name", ["generator.safetensors", "optimizer_d.safetensors", "state.json"])
def test_a_truncated_file_makes_the_previous_checkpoint_the_newest(run_dir, name, size):
    path = newest(run_dir) / name
    path.write_bytes(path.read_bytes()[:size])
    checkpoint, broken = newest_checkpoint(run_dir)
    assert checkpoint is not None
    assert checkpoint.images == 32
    assert len(broken) == 1
    assert "000000048" in broken[0]


def test_every_flipped_bit_is_noticed(run_dir):
    path = newest(run_dir) / "average.safetensors"
    content = path.read_bytes()
    for position in range(0, len(content), len(content) // 40):
        changed = bytearray(content)
        changed[position] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(Broken, match="average"):
            open_checkpoint(newest(run_dir))


def test_a_missing_file_is_noticed(run_dir):
    (newest(run_dir) / "discriminator.safetensors").unlink()
    with pytest.raises(Broken, match="missing"):
        open_checkpoint(newest(run_dir))


def test_file_names_that_lead_outside_are_refused(run_dir):
    state = newest(run_dir) / "state.json"
    header = json.loads(state.read_text())
    header["files"]["../../config.yaml"] = "0" * 64
    state.write_text(json.dumps(header))
    with pytest.raises(Broken, match="outside"):
        open_checkpoint(newest(run_dir))


def test_a_newer_version_is_refused_with_advice(run_dir):
    state = newest(run_dir) / "state.json"
    state.write_text(state.read_text().replace('"version": 1', '"version": 2', 1))
    with pytest.raises(UserError, match=r"(?s)version 2.*Update"):
        open_checkpoint(newest(run_dir))


def test_leftovers_of_a_killed_process_are_swept(run_dir):
    half = run_dir / "checkpoints" / ".partial-000000064"
    half.mkdir()
    (half / "generator.safetensors").write_bytes(b"half")
    (run_dir / ".partial-generator.safetensors").write_bytes(b"half")
    checkpoint, _ = newest_checkpoint(run_dir)
    assert checkpoint is not None
    assert checkpoint.images == 48
    assert not half.exists()
    assert not (run_dir / ".partial-generator.safetensors").exists()


@pytest.mark.slow
def test_a_kill_inside_saving_leaves_the_previous_checkpoint(run_dir):
    """The process dies after each file operation of a save, in turn."""
    program = """
import os, sys
from pathlib import Path
from pggan import files
from pggan.checkpoint import newest_checkpoint, save_checkpoint, architecture_from
from pggan.cli import compose
from pggan.config import TrainConfig
from pggan.schema import validated
from pggan.state import new_state
import torch
run_dir, deadly = Path(sys.argv[1]), int(sys.argv[2])
checkpoint, _ = newest_checkpoint(run_dir)
config = validated(TrainConfig, compose("train", []))
state = new_state(checkpoint.architecture, config.optimizer, 0, torch.device("cpu"))
checkpoint.restore(state)
state.images += 8
count = 0
def deadly_call(function):
    def call(*arguments, **options):
        global count
        count += 1
        if count == deadly:
            os._exit(9)
        return function(*arguments, **options)
    return call
for name in ("fsync", "replace", "rename", "open"):
    setattr(os, name, deadly_call(getattr(os, name)))
save_checkpoint(run_dir, state, config.schedule.build().at(0), {}, 2)
"""
    root = Path(__file__).parents[1]
    died = 0
    for deadly in range(1, 40, 3):
        copy = Path(shutil.copytree(run_dir, run_dir.parent / f"copy-{deadly}"))
        result = subprocess.run([sys.executable, "-c", program, str(copy), str(deadly)], cwd=root, check=False)
        died += result.returncode == 9
        checkpoint, broken = newest_checkpoint(copy)
        assert checkpoint is not None
        assert checkpoint.images in (48, 56)
        assert broken == []
        assert not list(copy.rglob(".partial-*"))
        if result.returncode == 0:
            break
    assert died >= 5


def test_a_failed_save_keeps_what_was_there(run_dir, monkeypatch):
    checkpoint, _ = newest_checkpoint(run_dir)
    before = facts_of_run(run_dir)

    def full_disk(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pggan.checkpoint.save_file", full_disk)
    from pggan.checkpoint import save_checkpoint
    from pggan.config import OptimizerConfig
    from pggan.schedule import Phase
    from pggan.state import new_state

    assert checkpoint is not None
    adam = OptimizerConfig(beta1=0.0, beta2=0.99, epsilon=1e-8, reset_at_phase=True)
    state = new_state(checkpoint.architecture, adam, 0, CPU)
    state.images = 99
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(run_dir, state, Phase(0, 4, False, 1.0, 0, 1, 8, 0.1, 0.1, 0), {}, 2)
    assert facts_of_run(run_dir) == before
    assert not list(run_dir.rglob(".partial-*"))


def test_the_hash_is_that_of_the_files(run_dir):
    """Recomputed from the safetensors alone, as anyone could."""
    from safetensors.torch import load_file

    from pggan.state import state_sha256

    header = json.loads((newest(run_dir) / "state.json").read_text())
    names = ("generator", "discriminator", "average", "optimizer_g", "optimizer_d")
    parts = {part: load_file(newest(run_dir) / f"{part}.safetensors") for part in names}
    assert state_sha256(parts, header["images"], header["phase_index"]) == header["state_sha256"]


class Sentinel:
    """Unpickling this would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def test_a_pickle_in_place_of_a_generator_is_refused_and_not_executed(tmp_path):
    sentinel = tmp_path / "executed"
    torch.save({"weights": Sentinel(sentinel)}, tmp_path / "generator.safetensors")
    with pytest.raises(UserError, match="not a whole generator"):
        load_generator(str(tmp_path / "generator.safetensors"), CPU)
    assert not sentinel.exists()


def test_a_generator_of_another_program_is_refused(tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "generator.safetensors")
    with pytest.raises(UserError, match="not a whole generator"):
        load_generator(str(tmp_path), CPU)


def test_a_path_without_generator_is_refused_with_advice(tmp_path):
    with pytest.raises(UserError, match="first checkpoint"):
        load_generator(str(tmp_path), CPU)
