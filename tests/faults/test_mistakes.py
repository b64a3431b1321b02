"""Mistakes in the configuration: each refused at once, with what to write instead, before anything is written."""

import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pggan.cli.compose import compose
from pggan.cli.main import main

ROOT = Path(__file__).parents[2]

# What is written on the command line, and what the answer has to contain: one mistake of a kind.  Others are in
# tests/cli (names) and tests/config (types and values).
MISTAKES = {
    # names
    "shedule.batch=8": "Did you mean 'schedule.batch'?",
    "experiment=papper_1024": "Did you mean 'paper_1024'?",
    "loss=logistic loss.gama=1": "Did you mean 'loss.gamma'?",
    "experiment=dmo loss.gamma=1": "There is no experiment=dmo",
    "loss=[logistic": "can't be read",
    # types
    "seed=one": "a whole number",
    "model.resampling=cubic": "fused",
    # values
    "schedule.first_resolution=32": "Training grows upwards",
    "schedule.batch=6": "Use a batch of 4 or 8",
    # what is not there, or can't be
    "data.path=no/such/folder": "no/such/folder",
    "data.labels=true": "labels=true",
    "schedule.final_resolution=64": "Lower schedule.final_resolution to 16",
    "devices=cuda:7": "Use auto",
    "run_dir={file}/below": "can't be written",
    "resume=maybe": "Give a run directory",
    "init_from={empty} resume={empty}": "Leave out one of them",
    # how it is written
    "--seed=3": "Leave out the dashes: seed=3",
    "seed": "Write key=value",
    "name=${oc.env:PGGAN_NO_SUCH_VARIABLE}": "PGGAN_NO_SUCH_VARIABLE",
}


@pytest.fixture(scope="module")
def allowed(tmp_path_factory):
    """Seconds of the processor that an answer may take, once all is imported.

    Three, and on a slower machine what composing takes fifteen times, which is a fifth of a second elsewhere.
    """
    assert main(["train", f"run_dir={tmp_path_factory.mktemp('first') / 'run'}", "+loss.gama=1"]) == 2
    began = time.process_time()
    compose("train", [])
    return max(3.0, 15 * (time.process_time() - began))


@pytest.mark.fault(29)
@pytest.mark.parametrize(("mistake", "hint"), MISTAKES.items())
def test_a_mistake_is_refused_within_three_seconds_with_what_to_write_instead(
    allowed, tiny_overrides, tmp_path, capsys, mistake, hint
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    before = sorted(tmp_path.rglob("*"))
    words = mistake_words(mistake, tmp_path)
    began = time.process_time()  # what others do on this machine meanwhile does not count
    code = main(["train", *tiny_overrides, f"run_dir={tmp_path / 'run'}", f"data.cache={tmp_path / 'cache'}", *words])
    seconds = time.process_time() - began
    shown = capsys.readouterr().err
    assert code == 2, shown
    assert "Error: " in shown
    assert hint in shown
    assert "Traceback" not in shown
    assert seconds < allowed
    assert sorted(tmp_path.rglob("*")) == before


def mistake_words(mistake: str, folder: Path) -> list[str]:
    """The words of a command line; those with a space inside braces stay one."""
    words = [mistake] if "{" in mistake and ": " in mistake else mistake.split(" ")
    return [word.strip("'").replace("{empty}", f"{folder}/empty").replace("{file}", f"{folder}/file") for word in words]


def processor_seconds(*command: str, code: int, says: str = "") -> float:
    """What a process takes of the processor, which others on this machine do not change, to end with `code`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    assert says in result.stderr
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.fault(29)
def test_a_real_process_refuses_within_three_seconds_beyond_its_imports(allowed, tmp_path):
    imports = processor_seconds("-c", "import pggan.cli.main, pggan.config, hydra, pggan.core.devices", code=0)
    command = ["train.py", f"run_dir={tmp_path / 'run'}", "seed=1", "devices=cuda:7"]  # torch says what there is
    assert processor_seconds(*command, code=2, says="Use auto") < imports + allowed
    assert list(tmp_path.iterdir()) == []
