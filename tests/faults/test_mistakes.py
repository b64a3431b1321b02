"""Mistakes in the configuration: each refused at once, with what to write instead, before anything is written."""

from pathlib import Path

import pytest

from pggan.cli.main import main

# What is written on the command line, and what the answer has to contain: one mistake of a kind.  Others are in
# tests/cli (names) and tests/config (types and values).
MISTAKES = {
    # names
    "shedule.batch=8": "Did you mean 'schedule.batch'?",
    "loss=logistic loss.gama=1": "Did you mean 'loss.gamma'?",
    "experiment=dmo loss.gamma=1": "There is no experiment=dmo",
    # types
    "seed=one": "a whole number",
    # values
    "schedule.first_resolution=32": "training goes from low to high resolutions",
    "schedule.batch=6": "a multiple of 4",
    # what is not there, or can't be
    "data.path=no/such/folder": "no/such/folder",
    "schedule.final_resolution=64": "Lower schedule.final_resolution to 16",
    "devices=cuda:7": "Use auto",
    "run_dir={file}/below": "can't be written",
    "resume=maybe": "Give a run directory",
    # how it is written
    "--seed=3": "Leave out the dashes: seed=3",
    "name=${oc.env:PGGAN_NO_SUCH_VARIABLE}": "PGGAN_NO_SUCH_VARIABLE",
}


@pytest.mark.parametrize(("mistake", "hint"), MISTAKES.items())
def test_a_mistake_is_refused_with_what_to_write_instead(tiny_overrides, tmp_path, capsys, mistake, hint):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    words = mistake_words(mistake, tmp_path)
    code = main(["train", *tiny_overrides, f"run_dir={tmp_path / 'run'}", f"data.cache={tmp_path / 'cache'}", *words])
    shown = capsys.readouterr().err
    assert code == 2, shown
    assert "Error: " in shown
    assert hint in shown
    assert "Traceback" not in shown
    assert sorted(tmp_path.rglob("*")) == before


def mistake_words(mistake: str, folder: Path) -> list[str]:
    """The words of a command line; those with a space inside braces stay one."""
    words = [mistake] if "{" in mistake and ": " in mistake else mistake.split(" ")
    return [word.strip("'").replace("{empty}", f"{folder}/empty").replace("{file}", f"{folder}/file") for word in words]
