"""A command without run= takes the newest run below outputs/, and says so."""

import os
from shutil import copytree

import pytest

from pggan.cli.main import main


@pytest.fixture
def outputs(finished_run, tmp_path, monkeypatch):
    """The working directory has an old run, a new run, and a run that has no checkpoint yet."""
    for name, seconds in (("old", 1000.0), ("new", 2000.0)):
        copytree(finished_run, tmp_path / "outputs" / name)
        os.utime(tmp_path / "outputs" / name / "generator.safetensors", (seconds, seconds))
    (tmp_path / "outputs" / "starting").mkdir()
    (tmp_path / "outputs" / "starting" / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path / "outputs"


@pytest.mark.parametrize(
    "words",
    [
        ["sample", "seeds=0"],
        ["timelapse", "seconds=0.1"],
        ["inspect", "json=true"],
        ["directions", "count=1", "seeds=0"],
        ["export", "format=safetensors", "out=a.safetensors"],
    ],
    ids=lambda words: words[0],
)
def test_the_newest_run_with_a_checkpoint_is_taken(outputs, words, capsys):
    before = {path for path in outputs.rglob("*") if path.parent.name != "new"}
    assert main(words) == 0
    said = capsys.readouterr()
    assert "The newest run: run=outputs/new" in said.err
    assert "outputs/old" not in said.out
    made = {path for path in outputs.rglob("*") if path.parent.name != "new"} - before
    assert all(path.is_relative_to(outputs / "new") for path in made)
