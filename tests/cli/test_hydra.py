"""Every command is an application of Hydra: its flags do what Hydra's users know."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from pggan.checkpoints.read import newest_checkpoint
from pggan.cli.main import main

ROOT = Path(__file__).parents[2]


@pytest.fixture
def own(tmp_path):
    """A folder of configuration files of one's own."""
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    recipe = "# @package _global_\ndefaults:\n  - demo\n  - override /loss: relativistic\nname: mine\nseed: 5\n"
    (tmp_path / "conf" / "experiment" / "mine.yaml").write_text(recipe)
    return tmp_path / "conf"


@pytest.mark.parametrize("recipe", ["mine", "[mine]", "conf/experiment/mine.yaml"])
def test_a_recipe_may_begin_with_a_byte_order_mark(own, recipe, monkeypatch, capsys):
    file = own / "experiment" / "mine.yaml"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    monkeypatch.chdir(own.parent)
    words = ["train", f"experiment={recipe}", "seed=6", *(["--config-dir", "conf"] if "/" not in recipe else [])]
    assert main([*words, "schedule.batch=6"]) == 2  # in the recipe's order of images
    assert "a multiple of 4" in capsys.readouterr().err
    monkeypatch.setattr("pggan.cli.main.run_command", lambda command, values: print(values["name"], values["seed"]))
    main(words)
    assert capsys.readouterr().out == "mine 6\n"


def test_info_shows_where_the_configuration_comes_from():
    words = [sys.executable, "train.py", "--info", "defaults", "experiment=demo"]  # Hydra leaves its own logging behind
    assert "experiment/demo" in subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_recipes_are_taken_from_a_folder_of_ones_own_and_from_any_file_but_without_a_part_of_hydra(own, capsys):
    file = own / "experiment" / "mine.yaml"
    for words in (["--config-dir", str(own), "experiment=mine"], [f"experiment={file}"]):
        assert main(["train", *words, "--cfg=job"]) == 0
        values = yaml.safe_load(capsys.readouterr().out)
        assert (values["name"], values["loss"]["name"], values["seed"]) == ("mine", "relativistic", 5)
    assert main(["train", "--config-dir", str(own), "experiment=mien"]) == 2
    assert "Did you mean 'mine'?" in capsys.readouterr().err
    for part in ("hydra: {callbacks: {a: {_target_: os.system}}}\n", "defaults: [override /hydra/launcher: basic]\n"):
        file.write_text(part)
        assert main(["train", f"experiment={file}"]) == 2
        assert "must not have settings of Hydra" in capsys.readouterr().err


@pytest.mark.slow
def test_multirun_trains_once_per_value(tiny_overrides, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = [*tiny_overrides, "schedule.final_resolution=4", "schedule.total_images=8"]
    words = ["--multirun", *short, "seed=1,2", f"run_dir={tmp_path}/${{seed}}", "experiment=demo", "data.mirror=true"]
    began = time.monotonic()
    assert main(["train", *words]) == 0
    for seed in (1, 2):
        assert yaml.safe_load((tmp_path / str(seed) / "config.yaml").read_text())["seed"] == seed
        assert (tmp_path / str(seed) / "generator.safetensors").is_file()
    spent = sum(newest_checkpoint(tmp_path / seed)[0].header["spent_seconds"] for seed in "12")
    assert spent < time.monotonic() - began  # a job does not count the seconds of the jobs before it


@pytest.mark.slow
def test_commands_and_keys_are_completed_in_bash_as_the_guide_says():
    script = """
    eval "$(pggan train -sc install=bash)"
    COMP_LINE="pggan trai" COMP_CWORD=1; hydra_bash_completion; echo "${COMPREPLY[@]}"
    COMP_LINE="pggan train loss=w" COMP_CWORD=2; hydra_bash_completion; echo "${COMPREPLY[@]}"
    complete -p pggan
    """
    variables = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=variables, capture_output=True, text=True, check=True)
    *completed, rule = done.stdout.splitlines()
    assert completed == ["train", "loss=wgan_gp"]
    assert "hydra_bash_completion pggan" in rule
