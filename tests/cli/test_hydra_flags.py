"""Hydra's own flags: --cfg, --multirun, --config-dir; and the changes to Hydra: no code from a file, Python 3.14."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hydra import compose, initialize_config_dir

from pggan.cli.commands import COMMANDS
from pggan.cli.compose import compose as compose_values
from pggan.cli.compose import config_folder
from pggan.cli.hydra_flags import FLAGS, _job_settings, as_typed, run_with_flags
from pggan.cli.main import main
from pggan.cli.recipe_file import with_recipes
from pggan.core.errors import UserError

ROOT = Path(__file__).parents[2]


def train(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_cfg_job_prints_the_composed_configuration(capsys):
    assert main(["train", "schedule.batch={8: 4}", "--cfg", "job", "seed=7"]) == 0
    values = yaml.safe_load(capsys.readouterr().out)
    assert values["schedule"]["batch"] == {8: 4}
    assert values["seed"] == 7
    assert values["loss"]["penalty_resolution"] == "final"


@pytest.fixture
def own_folder(tmp_path):
    """A folder with an experiment of one's own."""
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\ndefaults:\n  - override /loss: logistic\nloss:\n  gamma: 7.0\n")
    return tmp_path / "own"


@pytest.mark.slow
def test_multirun_trains_with_an_experiment_of_ones_own(own_folder, tiny_overrides, tmp_path):
    words = ["--multirun", "-cd", str(own_folder), *tiny_overrides, "experiment=mine", "schedule.total_images=8"]
    result = train(*words, "seed=1", f"run_dir={tmp_path}/seed-${{seed}}", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    values = yaml.safe_load((tmp_path / "seed-1" / "config.yaml").read_text())
    assert (values["seed"], values["loss"]["gamma"]) == (1, 7.0)
    assert (tmp_path / "seed-1" / "generator.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("flag", [("--config-dir", "{}"), ("-cd", "{}"), ("--config-dir={}",)])
def test_experiments_can_lie_in_a_folder_of_ones_own(flag, own_folder, capsys):
    words = [word.format(own_folder) for word in flag]
    assert main(["train", *words, "experiment=mine", "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["loss"]["gamma"] == 7.0
    for mistake, hint in {"experiment=mime": "'mine'", "experiment=mine loss.gama=1": "'loss.gamma'"}.items():
        assert main(["train", *words, *mistake.split()]) == 2
        assert hint in capsys.readouterr().err


@pytest.fixture
def own_loss(own_folder):
    """A folder with a loss of one's own, which is the paper's with more drift."""
    (own_folder / "loss").mkdir()
    (own_folder / "loss" / "mine.yaml").write_text("defaults:\n  - wgan_gp\ndrift: 0.01\n")
    return own_folder


@pytest.mark.parametrize("loss", ["wgan_gp", "mine"])
def test_options_of_a_recipe_go_with_the_loss_also_beside_flags(loss, own_loss, capsys):
    words = ["--config-dir", str(own_loss), "experiment=demo", f"loss={loss}"]
    expected = compose_values("train", words[2:], words[1])["loss"]
    assert "gamma" not in expected
    assert expected["drift"] == {"wgan_gp": 0.001, "mine": 0.01}[loss]
    assert main(["train", *words, "--cfg", "job"]) == 0
    assert yaml.safe_load(capsys.readouterr().out)["loss"] == expected
    started = []
    assert run_with_flags(COMMANDS["train"], words, lambda command, values: started.append(values["loss"]) or 0) == 0
    assert started == [expected]
    assert main(["train", *words, "loss.gamma=3"]) == 2
    assert "'loss.gamma'" in capsys.readouterr().err


@pytest.mark.parametrize(("group", "start"), [("loss", ""), ("experiment", "# @package _global_\n")])
def test_files_that_are_based_on_each_other_are_refused(group, start, own_loss, capsys):
    for name, base in (("first", "second"), ("second", "first")):
        (own_loss / group / f"{name}.yaml").write_text(f"{start}defaults:\n  - {base}\n")
    for more in ([], ["--cfg", "job"], ["hours=1"]):
        assert main(["train", "--config-dir", str(own_loss), f"{group}=first", *more]) == 2
        assert f"in {own_loss} is based on itself" in capsys.readouterr().err


def test_the_help_lists_the_experiments_of_ones_own_folder_too(own_folder, capsys):
    assert main(["train", "--config-dir", str(own_folder), "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"a file of configs/ or {own_folder}:" in shown
    assert " gray_256 mine modern " in shown
    assert main(["train", f"--config-dir={own_folder}", "experiment=mine", "--help", "all"]) == 0
    shown = capsys.readouterr().out
    assert f"Keys of {own_folder / 'experiment' / 'mine.yaml'}:" in shown
    assert "gamma: 7.0" in shown
    assert main(["train", "--help"]) == 0
    assert " mine " not in capsys.readouterr().out


def test_the_folder_is_found_in_all_forms(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("own", "a=b"):
        (tmp_path / folder).mkdir()
    for flags in (["--config-dir", "own"], ["-m", "-cd", "own"], ["--config-dir=own", "-m"], ["--config-dir=own"]):
        assert config_folder(flags) == "own"
    assert config_folder(["--multirun", "--cfg", "job"]) is None
    assert config_folder(["--config-dir=a=b"]) == "a=b"
    assert "--config-dir" in FLAGS


def test_a_job_is_given_a_recipe_by_its_path_as_it_was_typed(own_folder):
    file = own_folder / "experiment" / "mine.yaml"
    typed = [f"experiment={file}", "seed=1,2", "loss.gamma=3", "devices=cpu"]
    of_job = ["loss=logistic", "seed=2", "loss.gamma=3", "devices=cpu", "data.count=64"]  # the last one by a sweeper
    expected = [f"experiment={file}", "seed=2", "loss.gamma=3", "devices=cpu", "data.count=64"]
    assert as_typed(of_job, typed, with_recipes(typed)) == expected
    assert as_typed(of_job, typed[1:], typed[1:]) == of_job


def test_keys_are_given_without_dashes(capsys):
    assert main(["train", "--seed=3"]) == 2
    assert "Leave out the dashes: seed=3" in capsys.readouterr().err


def test_jobs_that_are_queued_again_need_a_run_directory(monkeypatch):
    train_command, slurm = COMMANDS["train"], "hydra/launcher=submitit_slurm"
    assert _job_settings(train_command, ["seed=1"]) == []
    with pytest.raises(UserError, match="run_dir="):
        _job_settings(train_command, [slurm])
    monkeypatch.setattr("pggan.cli.hydra_flags.find_spec", lambda name: None)
    with pytest.raises(UserError, match="not installed"):
        _job_settings(train_command, [slurm, "run_dir=x"])
    monkeypatch.setattr("pggan.cli.hydra_flags.find_spec", lambda name: object())
    assert _job_settings(train_command, [slurm, "run_dir=x"]) == ["hydra.launcher.max_num_timeout=1000"]
    assert _job_settings(train_command, ["hydra/launcher=submitit_local", "run_dir=x"]) == []
    assert _job_settings(COMMANDS["sample"], [slurm]) == ["hydra.launcher.max_num_timeout=1000"]


def test_a_file_of_the_group_hydra_says_how_jobs_are_launched(own_folder, capsys, monkeypatch):
    (own_folder / "hydra").mkdir()
    (own_folder / "hydra" / "mine.yaml").write_text("sweeper:\n  max_batch_size: 3\n")
    mistakes = {
        "hydra=slurm": "Add --multirun",
        "--multirun hydra=slurm seed=1,2": "run_dir=",
        "--multirun hydra=slurm seed=1,2 run_dir=x": "All 2 jobs would train in one directory",
        "--multirun hydra=slurm seed=1,2 loss=logistic,wgan_gp run_dir=x/${seed}": "several would train in x/1",
        "--multirun hydra=slrum seed=1,2 run_dir=x/${seed}": "'slurm'",
        f"--multirun --config-dir {own_folder} hydra=mime seed=1,2 run_dir=x/${{seed}}": "'mine'",
        "--multirun --cfg job seed=1,2": "Leave out --multirun",
    }
    for words, hint in mistakes.items():
        assert main(["train", *words.split()]) == 2
        assert hint in capsys.readouterr().err, words


def test_the_settings_for_slurm_are_those_of_its_launcher():
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher", reason="needs the extra slurm")
    file = COMMANDS["train"].config_file
    with initialize_config_dir(str(file.parent), version_base="1.3"):
        launcher = compose(file.stem, ["hydra=slurm"], return_hydra_config=True).hydra.launcher
    assert (launcher.gpus_per_node, launcher.timeout_min, launcher.max_num_timeout) == (1, 1440, 1000)
    assert launcher._target_.endswith("SlurmLauncher")


def test_jobs_of_a_launcher_end_with_a_table_too(capsys, monkeypatch):
    monkeypatch.setattr("hydra.main", lambda **_: lambda task: lambda: None)
    words = ["train", "--multirun", "hydra/launcher=submitit_local", "seed=1,2", "debug=smoke", "run_dir='x/${seed}'"]
    assert main(words) == 0
    said = capsys.readouterr().out.strip().splitlines()
    assert [line.split() for line in said[:3]] == [
        ["seed", "end", "run_dir"],
        ["1", "done", "x/1"],
        ["2", "done", "x/2"],
    ]
    assert said[-1] == "Next: pggan monitor run=x"


def test_a_machine_without_slurm_is_one_message(capsys, monkeypatch):
    def refuse():
        raise RuntimeError("sbatch: error: fetch_config\nsbatch: fatal: no configuration source")

    monkeypatch.setattr("hydra.main", lambda **_: lambda task: refuse)
    assert main(["train", "--multirun", "hydra=slurm", "seed=1,2", "run_dir='x/${seed}'"]) == 2
    assert "Slurm takes no jobs here: sbatch: fatal: no configuration source." in capsys.readouterr().err
    monkeypatch.setattr("hydra.main", lambda **_: lambda task: lambda: {}[0])
    with pytest.raises(KeyError):
        main(["train", "--multirun", "hydra=slurm", "seed=1,2", "run_dir='x/${seed}'"])


# ---- changes to Hydra -------------------------------------------------------------------------------------


def test_hydra_flags_survive_the_help_check_of_newer_argparse(monkeypatch, capsys):
    """Python 3.14's argparse formats every help text when it is added; this does what it does."""

    def check_help(self, action):
        if action.help and hasattr(self, "_get_formatter"):
            try:
                "%" in action.help  # noqa: B015 - raises TypeError for Hydra's lazy object
            except TypeError as error:
                raise ValueError("badly formed help string") from error

    add = argparse.ArgumentParser._add_action

    def checking_add(self, action):
        self._check_help(action)
        return add(self, action)

    monkeypatch.setattr(argparse._ActionsContainer, "_check_help", check_help, raising=False)
    monkeypatch.setattr(argparse.ArgumentParser, "_add_action", checking_add)
    monkeypatch.setattr(sys, "argv", ["pggan"])
    from hydra._internal.utils import get_args_parser

    with pytest.raises(ValueError, match="badly formed help string"):
        get_args_parser()
    assert main(["train", "--cfg", "job"]) == 0
    assert "seed: 0" in capsys.readouterr().out


def test_a_configuration_that_names_code_to_call_is_refused(tmp_path, capsys):
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    (tmp_path / "called.py").write_text(
        f"import pathlib\nclass Call:\n    def __init__(self): pathlib.Path({str(tmp_path / 'trace')!r}).touch()\n"
    )
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\nhydra:\n  callbacks:\n    mine:\n      _target_: called.Call\n")
    sys.path.insert(0, str(tmp_path))
    try:
        assert main(["train", "-cd", str(tmp_path / "own"), "experiment=mine", "data.path=nowhere"]) == 2
    finally:
        sys.path.remove(str(tmp_path))
    assert "hydra.callbacks" in capsys.readouterr().err
    assert not (tmp_path / "trace").exists()
