"""Checkpoints are whole or passed over, and nothing in them is trusted."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from pggan.checkpoints.read import (
    PARTS,
    CorruptCheckpoint,
    checkpoints_of,
    checksum_of,
    load_generator,
    newest_checkpoint,
    open_checkpoint,
)
from pggan.checkpoints.write import NonFiniteError, Snapshot, prune, write_checkpoint
from pggan.core.atomic_io import clean_partials
from pggan.core.errors import UserError
from pggan.run import train
from pggan.run.inspect import facts_of_run

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def finished(tmp_path_factory, toy_data):
    """A finished run with two checkpoints."""
    from pggan.cli.compose import compose
    from pggan.config import TrainConfig
    from pggan.core.validation import validated

    run_dir = tmp_path_factory.mktemp("run")
    overrides = [
        f"data.path={toy_data}",
        f"run_dir={run_dir}",
        "schedule.final_resolution=8",
        "schedule.stable_images=16",
        "schedule.fade_images=16",
        "schedule.batch=8",
        "model.fmap_max=8",
        "checkpoint.every_images=64",
        "devices=cpu",
    ]
    train.run(validated(TrainConfig, compose("train", overrides)))
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


def test_a_missing_file_is_noticed(run_dir):
    (newest(run_dir) / "discriminator.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match="missing"):
        open_checkpoint(newest(run_dir))


def test_file_names_that_lead_outside_are_refused(run_dir):
    state = newest(run_dir) / "state.json"
    header = json.loads(state.read_text())
    header["files"]["../../config.yaml"] = "0" * 64
    header["sha256"] = checksum_of(header)
    state.write_text(json.dumps(header))
    with pytest.raises(CorruptCheckpoint, match="outside"):
        open_checkpoint(newest(run_dir))


def test_a_newer_version_is_refused_with_advice(run_dir):
    state = newest(run_dir) / "state.json"
    state.write_text(state.read_text().replace('"version": 2', '"version": 3', 1))
    with pytest.raises(UserError, match=r"(?s)version 3.*Update"):
        open_checkpoint(newest(run_dir))


def test_leftovers_of_a_killed_process_are_swept(run_dir):
    half = run_dir / "checkpoints" / ".partial-000000064"
    half.mkdir()
    (half / "generator.safetensors").write_bytes(b"half")
    (run_dir / ".partial-generator.safetensors").write_bytes(b"half")
    (run_dir / "checkpoints" / ".partial-link").symlink_to(newest(run_dir))
    clean_partials(run_dir)
    clean_partials(run_dir / "checkpoints")
    assert not list(run_dir.rglob(".partial-*"))
    checkpoint, _ = newest_checkpoint(run_dir)
    assert checkpoint is not None
    assert checkpoint.images == 48


def test_looking_at_a_run_does_not_disturb_what_it_is_writing(run_dir):
    (run_dir / "checkpoints" / ".partial-000000064").mkdir()
    facts_of_run(run_dir)
    assert (run_dir / "checkpoints" / ".partial-000000064").is_dir()


def test_a_checkpoint_killed_while_its_successor_takes_its_name_is_put_back(run_dir):
    before = facts_of_run(run_dir)
    newest(run_dir).rename(run_dir / "checkpoints" / ".replaced-000000048")
    clean_partials(run_dir / "checkpoints")
    assert facts_of_run(run_dir) == before


def snapshot_of(run_dir: Path, images: int, milestone: bool = False) -> Snapshot:
    checkpoint, _ = newest_checkpoint(run_dir)
    parts = {part: checkpoint.load(part) for part in PARTS}
    stage = {key: checkpoint.header[key] for key in ("phase", "resolution", "alpha")}
    return Snapshot(parts, images, 2, checkpoint.architecture, stage, {"config": {}, "milestone": milestone})


def test_a_failed_save_keeps_what_was_there(run_dir, monkeypatch):
    before, snapshot = facts_of_run(run_dir), snapshot_of(run_dir, 99)
    generator = (run_dir / "generator.safetensors").read_bytes()

    def full_disk(*arguments, **options):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("pggan.checkpoints.write.save_file", full_disk)
    with pytest.raises(OSError, match="No space") as caught:
        write_checkpoint(run_dir, snapshot)
    assert caught.value.errno == 28
    assert facts_of_run(run_dir) == before
    assert (run_dir / "generator.safetensors").read_bytes() == generator
    assert not list(run_dir.rglob(".partial-*"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("part", PARTS)
def test_numbers_that_are_not_finite_are_never_written(run_dir, part, value):
    before, snapshot = facts_of_run(run_dir), snapshot_of(run_dir, 99)
    name = max(name for name, tensor in snapshot.parts[part].items() if tensor.ndim)
    snapshot.parts[part][name].view(-1)[0] = value
    with pytest.raises(NonFiniteError, match=name):
        write_checkpoint(run_dir, snapshot)
    assert facts_of_run(run_dir) == before


def test_a_save_on_a_name_that_is_there_replaces_it(run_dir):
    before = facts_of_run(run_dir)["state_sha256"]
    snapshot = snapshot_of(run_dir, 48)
    next(iter(snapshot.parts["generator"].values())).add_(1)
    write_checkpoint(run_dir, snapshot)
    assert facts_of_run(run_dir)["state_sha256"] != before
    assert not list(run_dir.rglob(".replaced-*"))


def test_the_newest_and_the_milestones_are_kept_and_what_lies_ahead_is_dropped(run_dir):
    for images, milestone in ((56, True), (64, False), (72, False), (80, True), (88, False)):
        write_checkpoint(run_dir, snapshot_of(run_dir, images, milestone))
    (run_dir / "checkpoints" / "000000999").mkdir()
    prune(run_dir, newest=88, keep=2)
    assert [path.name for path in checkpoints_of(run_dir)] == ["000000056", "000000072", "000000080", "000000088"]


def test_a_checkpoint_of_the_version_before_is_read(run_dir):
    state = newest(run_dir) / "state.json"
    header = json.loads(state.read_text())
    del header["sha256"]
    state.write_text(json.dumps({**header, "version": 1}))
    assert open_checkpoint(newest(run_dir)).images == 48


def test_the_hash_is_that_of_the_files(run_dir):
    """Recomputed from the safetensors alone, as anyone could."""
    from safetensors.torch import load_file

    from pggan.optim.state import state_sha256

    header = json.loads((newest(run_dir) / "state.json").read_text())
    names = ("generator", "discriminator", "generator_ema", "optimizer_g", "optimizer_d", "grad_scaler")
    parts = {part: load_file(newest(run_dir) / f"{part}.safetensors") for part in names}
    assert state_sha256(parts, header["images"], header["phase_index"]) == header["state_sha256"]


def test_a_generator_of_another_program_is_refused(tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "generator.safetensors")
    with pytest.raises(UserError, match="not a whole generator"):
        load_generator(str(tmp_path), CPU)


def test_a_path_without_generator_is_refused_with_advice(tmp_path):
    with pytest.raises(UserError, match="first checkpoint"):
        load_generator(str(tmp_path), CPU)
