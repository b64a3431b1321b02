"""Checkpoints are valid or passed over, and nothing in them is trusted."""

import ast
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import pggan
from pggan.checkpoints.header import COMPONENTS, VERSION, checksum_of
from pggan.checkpoints.read import CorruptCheckpoint, newest_checkpoint, open_checkpoint, resolve_checkpoint
from pggan.checkpoints.write import write_checkpoint
from pggan.cli.main import main
from pggan.core.errors import UserError
from pggan.optim.state import state_sha256

PACKAGE = Path(pggan.__file__).parent


def reseal(checkpoint: Path, **changes: object) -> None:
    """Change what a state.json says, and its checksum with it."""
    header = {**json.loads((checkpoint / "state.json").read_text()), **changes}
    header["sha256"] = checksum_of(header)
    (checkpoint / "state.json").write_text(json.dumps(header))


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_the_newest_valid_checkpoint_is_found(finished_run):
    checkpoint, corrupt = newest_checkpoint(finished_run)
    assert checkpoint is not None
    assert (checkpoint.images, corrupt) == (160, [])


def test_a_missing_file_is_noticed(newest):
    (newest / "discriminator.safetensors").unlink()
    with pytest.raises(CorruptCheckpoint, match="missing"):
        open_checkpoint(newest)


def test_file_names_that_lead_outside_are_refused(newest):
    files = json.loads((newest / "state.json").read_text())["files"]
    reseal(newest, files={**files, "../../config.yaml": "0" * 64})
    with pytest.raises(CorruptCheckpoint, match="outside"):
        open_checkpoint(newest)


@pytest.mark.parametrize("version", [2, VERSION + 1])
@pytest.mark.fault(11)
def test_another_version_is_refused_with_advice_instead_of_passed_over(newest, version):
    reseal(newest, version=version)
    with pytest.raises(UserError, match=rf"(?s)version {version};.*version {VERSION}.*Use the pggan that wrote it"):
        newest_checkpoint(newest.parents[1])


def test_the_digest_is_that_of_the_files(finished_run):
    """Recomputed from the safetensors alone, as anyone could."""
    newest = finished_run / "checkpoints" / "000000160"
    header = json.loads((newest / "state.json").read_text())
    state_dicts = {component: load_file(newest / f"{component}.safetensors") for component in COMPONENTS}
    assert state_sha256(state_dicts, header["images"], header["phase_index"]) == header["state_sha256"]


# ---- what is given as run=, resume= or init_from= ----------------------------------------------------------


def test_a_run_stands_for_its_newest_valid_checkpoint_and_a_checkpoint_for_itself(run_dir, newest):
    assert resolve_checkpoint(run_dir, "run")[0].directory == newest
    older, notes = resolve_checkpoint(newest.parent / "000000128", "run")
    assert (older.images, notes) == (128, [])
    flip_a_byte(newest / "generator.safetensors")
    found, (note,) = resolve_checkpoint(run_dir, "run")
    assert found.images == 128
    assert "generator.safetensors has changed" in note


def test_what_cannot_be_resolved_is_refused_with_its_key_and_what_to_do(run_dir, newest, tmp_path):
    with pytest.raises(UserError, match=r"(?s)resume=.*nowhere has no checkpoint.*Give a run directory"):
        resolve_checkpoint(tmp_path / "nowhere", "resume")
    flip_a_byte(newest / "generator.safetensors")
    with pytest.raises(UserError, match=r"(?s)init_from=.* is not a valid checkpoint: .*has changed.*Choose another"):
        resolve_checkpoint(newest, "init_from")
    flip_a_byte(newest.parent / "000000128" / "generator.safetensors")
    with pytest.raises(UserError, match=r"(?s)run=.* no valid checkpoint: .*000000160.*000000128.*Put back an undam"):
        resolve_checkpoint(run_dir, "run")


WAYS_IN = {
    "resume": ["train", "resume={}", "run_dir={new}"],
    "init_from": ["train", "init_from={}", "run_dir={new}"],
    "run_dir": ["train", "run_dir={}"],
    "run": ["inspect", "run={}"],
}


@pytest.mark.parametrize(("key", "place"), [(key, place) for key in WAYS_IN for place in ("run", "checkpoint")][:-3])
@pytest.mark.parametrize("file", ["state.json", "generator_ema.safetensors"])
def test_on_every_way_in_a_damaged_checkpoint_is_one_message_and_exit_code_2(
    run_dir, newest, tiny_overrides, tmp_path, capsys, key, place, file
):
    for checkpoint in newest.parent.iterdir():
        flip_a_byte(checkpoint / file)
    path = newest if place == "checkpoint" else run_dir
    command, *words = (word.format(path, new=tmp_path / "new") for word in WAYS_IN[key])
    assert main([command, *(tiny_overrides if command == "train" else []), *words]) == 2
    shown = capsys.readouterr().err
    assert f"{key}={path}" in shown
    assert "valid checkpoint" in shown
    assert file in shown
    assert "Traceback" not in shown


@pytest.mark.parametrize("file", ["state.json", "optimizer_d.safetensors"])
def test_inspect_of_a_damaged_checkpoint_is_refused_without_a_traceback(newest, capsys, file):
    (newest / file).write_bytes(b"{")
    assert main(["inspect", f"run={newest}", "json=true"]) == 2
    shown = capsys.readouterr()
    assert f"Error: run={newest} is not a valid checkpoint" in shown.err
    assert "Choose another one of that run" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("words", [["sample"], ["interpolate", "seeds=[1,2]"]])
@pytest.mark.parametrize("place", ["run", "checkpoint", "file"])
def test_generators_are_drawn_from_at_a_run_a_checkpoint_and_a_file_and_refused_when_cut_short(
    run_dir, newest, tmp_path, capsys, words, place
):
    """By the one function that reads them, which needs no checkpoint."""
    given = {"run": run_dir, "checkpoint": newest, "file": run_dir / "generator.safetensors"}[place]
    out = tmp_path / "a.png"
    assert main([*words, f"run={given}", f"out={out}", "device=cpu"]) == 0
    assert out.exists()
    file = newest / "generator_ema.safetensors" if place == "checkpoint" else run_dir / "generator.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    assert main([*words, f"run={given}", f"out={out}", "device=cpu"]) == 2
    assert f"{file} is not a valid generator" in capsys.readouterr().err


def test_a_run_is_asked_for_its_best_checkpoint_or_that_of_an_image_count(run_dir, snapshot_of, tmp_path, capsys):
    write_checkpoint(run_dir, snapshot_of(run_dir, 120, best={"value": 1.0}))
    out = tmp_path / "a.png"
    assert main(["sample", f"run={run_dir}", "checkpoint=best", "seeds=1", f"out={out}", "device=cpu"]) == 0
    assert [pggan.load(run_dir, "cpu", checkpoint).images for checkpoint in ("best", 128)] == [120, 128]
    assert pggan.load(run_dir, "cpu").images == 120  # what was written last


@pytest.mark.parametrize(
    ("place", "choice", "hint"),
    [
        ("", "best", "Its checkpoints: 128, 160"),
        ("", "best", "it was trained without evaluation.best or evaluation.metrics"),
        ("", 130, "Its checkpoints: 128, 160"),
        ("", "worst", "newest, best, or the number of images"),
        ("generator.safetensors", "best", "leave out checkpoint="),
        ("checkpoints/000000160", 128, "leave out checkpoint="),
    ],
)
def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(finished_run, capsys, place, choice, hint):
    assert main(["sample", f"run={finished_run / place}", f"checkpoint={choice}", "device=cpu"]) == 2
    assert hint in capsys.readouterr().err


def test_only_two_functions_find_out_what_a_path_holds():
    """Nothing else opens checkpoints or generators by path, but a rollback and hours=, whose run is their own."""
    alone = {
        "open_checkpoint": {"checkpoints/read.py"},
        "newest_checkpoint": {"checkpoints/read.py", "checkpoints/rollback.py", "cli/auto_recipe.py"},
        "safe_open": {
            "checkpoints/header.py",
            "metrics/cache.py",  # statistics
            "sampling/latents/latents.py",  # files of latents
        },
        "load_file": {"checkpoints/read.py", "checkpoints/generator_file.py", "networks/features/weights.py"},
    }
    found: dict[str, set[str]] = {name: set() for name in alone}
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in alone:
                found[ast.unparse(node.func).split(".")[-1]].add(path.relative_to(PACKAGE).as_posix())
    assert found == alone
