"""Mistakes in the configuration: each refused at once, with what to write instead, before anything is written."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from pggan.cli.main import main

ROOT = Path(__file__).parents[2]

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
    "schedule.first_resolution=32": "training grows upwards",
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


def seconds_of(*command: str, code: int, says: str = "") -> float:
    began = time.perf_counter()
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, says in result.stderr) == (code, True), result.stderr
    return time.perf_counter() - began


@pytest.mark.rare
def test_a_real_process_refuses_soon_after_its_imports(tmp_path):
    """Three seconds on a machine of its own; this one may be shared."""
    imports = seconds_of("-c", "import pggan.cli.main, pggan.config, hydra, pggan.core.devices", code=0)
    command = ["train.py", f"run_dir={tmp_path / 'run'}", "seed=1", "devices=cuda:7"]  # torch says what there is
    assert seconds_of(*command, code=2, says="Use auto") < 3 * imports + 3
    assert list(tmp_path.iterdir()) == []
