"""Checkpoints are valid or passed over, and nothing in them is trusted."""

import json

import pytest
from safetensors.torch import load_file

import pggan
from pggan.checkpoints.read import COMPONENTS, VERSIONS, open_checkpoint, resolve_checkpoint
from pggan.checkpoints.write import write_checkpoint
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.optim.state import state_sha256
from pggan.run import train
from pggan.run.inspect import facts_of_run
from tests.checkpoints.conftest import reseal


def flip_a_byte(path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_another_version_is_refused_with_advice_instead_of_passed_over(run_dir, newest):
    version = VERSIONS[-1] + 1
    reseal(newest, version=version)
    with pytest.raises(UserError, match=rf"(?s)version {version};.*reads 4 to 5.*Use the version of pggan"):
        resolve_checkpoint(run_dir, "run_dir")


def test_a_run_of_the_version_before_resumes_and_ends_in_the_same_state(earlier, tiny_config, finished_run):
    keys = ("images", "parameters", "state_sha256", "architecture")
    before, now = facts_of_run(finished_run), facts_of_run(earlier)
    assert [now[key] for key in keys] == [before[key] for key in keys]
    for run_dir, images in ((earlier, 192), (earlier, 224), (earlier.parent / "new", 224)):
        assert train.run(tiny_config(f"run_dir={run_dir}", f"schedule.total_images={images}")) == 0
    assert facts_of_run(earlier)["state_sha256"] == facts_of_run(earlier.parent / "new")["state_sha256"]


def test_networks_that_this_version_has_not_are_refused_by_name(newest):
    architecture = json.loads((newest / "state.json").read_text())["architecture"]
    reseal(newest, architecture={**architecture, "mapping_layers": 8, "off": False})
    with pytest.raises(UserError, match="does not know these network settings: mapping_layers=8"):
        open_checkpoint(newest)


def test_the_digest_is_that_of_the_files(finished_run):
    """Recomputed from the safetensors alone, as anyone could."""
    newest = finished_run / "checkpoints" / "000000160"
    header = json.loads((newest / "state.json").read_text())
    state_dicts = {component: {} for component in COMPONENTS}
    for file in ("weights", "state"):
        for name, tensor in load_file(newest / f"{file}.safetensors").items():
            component, _, rest = name.partition("/")
            state_dicts[component][rest] = tensor
    assert state_sha256(state_dicts, header["images"], header["phase_index"]) == header["state_sha256"]


def test_a_run_stands_for_its_newest_valid_checkpoint_and_a_checkpoint_for_itself(run_dir, newest, tmp_path):
    assert resolve_checkpoint(run_dir, "run")[0].directory == newest
    older, notes = resolve_checkpoint(newest.parent / "000000128", "run")
    assert (older.images, notes) == (128, [])
    flip_a_byte(newest / "weights.safetensors")
    found, (note,) = resolve_checkpoint(run_dir, "run")
    assert found.images == 128
    assert "weights.safetensors: the file has changed" in note
    with pytest.raises(UserError, match=r"(?s)init_from=.* has no valid checkpoint: .*has changed.*give another"):
        resolve_checkpoint(newest, "init_from")
    with pytest.raises(UserError, match=r"(?s)resume=.*nowhere does not exist.*Give a run directory"):
        resolve_checkpoint(tmp_path / "nowhere", "resume")


def test_a_run_is_asked_for_its_best_checkpoint_or_that_of_an_image_count(run_dir, snapshot_of, capsys):
    for place, choice, hint in (
        ("", "best", "Its checkpoints: 128, 160. Evaluations mark the best"),
        ("", 130, "Its checkpoints: 128, 160"),
        ("generator.safetensors", "best", "because run= has no checkpoints"),
        ("checkpoints/000000160", 128, "because run= has no checkpoints"),
    ):
        assert main(["sample", f"run={run_dir / place}", f"checkpoint={choice}", "device=cpu"]) == 2
        assert hint in capsys.readouterr().err
    write_checkpoint(run_dir, snapshot_of(run_dir, 120, best={"value": 1.0}))
    assert [pggan.load(run_dir, "cpu", checkpoint).images for checkpoint in ("best", 128)] == [120, 128]
    assert pggan.load(run_dir, "cpu").images == 120  # what was written last
    state = run_dir / "checkpoints" / "000000120" / "state.json"
    state.write_text(state.read_text().replace('"value"', '"valua"'))  # one bit
    assert main(["sample", f"run={run_dir}", "checkpoint=best", "device=cpu"]) == 2
