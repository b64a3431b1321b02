"""Checkpoints that are cut short or changed are passed over, with one line about it."""

import random
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from pggan.checkpoints.read import CorruptCheckpoint, checkpoints_of, newest_checkpoint, open_checkpoint
from pggan.core.errors import UserError
from pggan.run import train
from pggan.run.inspect import facts_of_run
from tests.checkpoints.conftest import reseal

FILES = ("weights", "state")


def newest(run_dir: Path) -> Path:
    return checkpoints_of(run_dir)[-1]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.999])
def test_a_file_cut_short_at_any_size_makes_the_checkpoint_before_the_newest(finished_run, tmp_path, share):
    for name in (*(f"{part}.safetensors" for part in FILES), "state.json"):
        run_dir = Path(shutil.copytree(finished_run, tmp_path / name))
        path = newest(run_dir) / name
        path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
        checkpoint, (problem,) = newest_checkpoint(run_dir)
        assert checkpoint.images == 128
        assert name in problem
        path.unlink()
        assert newest_checkpoint(run_dir)[0].images == 128


def test_each_of_120_flipped_bits_is_noticed(run_dir):
    dice = random.Random(9)
    for name in (*(f"{part}.safetensors" for part in FILES), "state.json"):
        path = newest(run_dir) / name
        content = path.read_bytes()
        for _ in range(40):
            changed = bytearray(content)
            changed[dice.randrange(len(content))] ^= 1 << dice.randrange(8)
            path.write_bytes(changed)
            with pytest.raises((CorruptCheckpoint, UserError), match=r"000000160"):
                open_checkpoint(newest(run_dir))
        path.write_bytes(content)
    assert open_checkpoint(newest(run_dir)).images == 160


def test_the_run_resumes_from_the_one_before_says_so_once_and_ends_the_same(run_dir, tiny_config):
    wanted = facts_of_run(run_dir)["state_sha256"]
    (newest(run_dir) / "weights.safetensors").write_bytes(b"")
    before = (run_dir / "train.log").read_text()
    assert train.run(tiny_config(f"run_dir={run_dir}")) == 0
    said = (run_dir / "train.log").read_text().removeprefix(before)
    assert said.count("Passed over a corrupt checkpoint") == 1
    assert "Resuming from 128 images" in said
    assert facts_of_run(run_dir)["state_sha256"] == wanted


def test_a_run_without_any_valid_checkpoint_is_not_begun_anew(run_dir, tiny_config):
    for directory in checkpoints_of(run_dir):
        (directory / "state.json").write_text("{")
    with pytest.raises(UserError, match=r"(?s)no valid checkpoint.*000000160.*000000128.*undamaged checkpoint"):
        train.run(tiny_config(f"run_dir={run_dir}"))
    assert len(checkpoints_of(run_dir)) == 2


def test_a_checkpoint_of_other_networks_is_refused_before_images_are_prepared(finished_run, tiny_config, tmp_path):
    """The keys of the run are forgotten, and the defaults would draw four thousand avatars."""
    data = ("data.path=null", f"data.cache={tmp_path / 'data'}", "schedule.total_images=200")
    for override, line in (
        ("model.fmap_max=4", "fmap_max: 8 -> 4"),
        ("schedule.final_resolution=8", "resolution: 16 -> 8"),
        ("model.resampling=unfused", "resampling: "),
    ):
        with pytest.raises(UserError, match=f"(?s){line}.*resume the old run: pggan train run_dir="):
            train.run(tiny_config(f"run_dir={finished_run}", override, *data))
    assert not (tmp_path / "data").exists()


def test_a_checkpoint_whose_state_does_not_fit_is_refused_by_name(run_dir, tiny_config):
    """Valid files, and an optimizer state for parameters that don't exist."""
    path = newest(run_dir) / "state.safetensors"
    save_file({name.replace("blocks", "other"): tensor for name, tensor in load_file(path).items()}, path)
    reseal(newest(run_dir))
    with pytest.raises(UserError, match=r"(?s)does not fit.*fits no weight.*remove "):
        train.run(tiny_config(f"run_dir={run_dir}", "schedule.total_images=200"))
