"""The command line as a user meets it: help, typos, flags, exit codes."""

import argparse
import subprocess
import sys
from pathlib import Path

import pytest

from pggan.cli import main as cli
from pggan.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[1]


def train(*arguments: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "train.py"), *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_the_overview_lists_every_command(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert main([]) == 0


@pytest.mark.parametrize("verb", COMMANDS)
def test_help_shows_an_example_and_every_key_with_its_comment(verb, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    assert COMMANDS[verb].example in shown
    for line in COMMANDS[verb].config_file.read_text().splitlines():
        if line.startswith("#"):
            assert line in shown
    assert "???" not in shown or verb != "train"


def test_help_follows_the_chosen_groups(capsys):
    main(["train", "loss=relativistic", "--help"])
    shown = capsys.readouterr().out
    assert "loss=logistic|relativistic|wgan_gp" in shown
    assert "R2" in shown


def test_help_and_typos_need_no_torch():
    for arguments in (["--help"], ["modle.latent_size=5"]):
        code = "import sys; from pggan.cli.main import main; main(['train', *sys.argv[1:]]); sys.exit('torch' in sys.modules)"
        subprocess.run([sys.executable, "-c", code, *arguments], cwd=ROOT, check=True, capture_output=True)


TYPOS = {
    "modle.latent_size=5": "model.latent_size",
    "+model.latnet_size=5": "model.latent_size",
    "++model.latnet_size=5": "model.latent_size",
    "schedule.bach=5": "schedule.batch",
    "schedule.bach={4: 5}": "schedule.batch",
    "sead=1": "seed",
    "loss=wgangp": "wgan_gp",
    "+loss.gp_referense=native": "loss.gp_reference",
    "experiment=dmo": "demo",
    "data=avatar": "avatars",
    "~sead": "seed",
}


@pytest.mark.parametrize(("typo", "meant"), TYPOS.items())
def test_a_typo_is_refused_with_the_nearest_valid_name(typo, meant, capsys, tmp_path, toy_data):
    code = main(["train", f"data.path={toy_data}", f"run_dir={tmp_path / 'run'}", typo])
    assert code == 2
    message = capsys.readouterr().err
    assert message.startswith("Error: ")
    assert f"'{meant}'" in message
    assert not (tmp_path / "run").exists()


def test_a_typo_in_a_yaml_file_is_refused(tmp_path, monkeypatch, capsys):
    import shutil

    shutil.copytree(cli.CONFIGS, tmp_path / "configs")
    with (tmp_path / "configs" / "model" / "paper.yaml").open("a") as file:
        file.write("fmap_maximum: 3\n")
    monkeypatch.setattr(cli, "CONFIGS", tmp_path / "configs")
    assert main(["train"]) == 2
    assert "'model.fmap_maximum'" in capsys.readouterr().err


@pytest.mark.parametrize("flag", [("--config-dir", "{}"), ("-cd", "{}"), ("--config-dir={}",)])
def test_experiments_can_lie_in_a_folder_of_ones_own(flag, tiny_overrides, tmp_path, capsys):
    (tmp_path / "own" / "experiment").mkdir(parents=True)
    file = tmp_path / "own" / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\ndefaults:\n  - override /loss: logistic\nloss:\n  gamma: 7.0\n")
    words = [word.format(tmp_path / "own") for word in flag]

    def run(*more):
        command = [sys.executable, "train.py", *words, *tiny_overrides, *more]
        return subprocess.run(command, cwd=cli.CONFIGS.parent, capture_output=True, text=True, check=False)

    assert run("experiment=mine", "schedule.total_images=8", f"run_dir={tmp_path / 'run'}").returncode == 0
    assert "gamma: 7.0" in (tmp_path / "run" / "config.yaml").read_text()
    if flag[0] == "-cd":
        for mistake, hint in {"experiment=mime": "'mine'", "experiment=mine loss.gama=1": "'loss.gamma'"}.items():
            refused = run(*mistake.split())
            assert refused.returncode == 2
            assert hint in refused.stderr
            assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    "text", ["defaults: [override /lss: logistic]", "defaults: [/loss: logistic]", "- a", "checkpoint: [1, 2]"]
)
def test_an_experiment_that_can_not_be_composed_is_refused(text, tmp_path, monkeypatch, capsys):
    import shutil

    shutil.copytree(cli.CONFIGS, tmp_path / "configs")
    (tmp_path / "configs" / "experiment" / "mine.yaml").write_text(f"# @package _global_\n{text}\n")
    monkeypatch.setattr(cli, "CONFIGS", tmp_path / "configs")
    assert main(["train", "experiment=mine"]) == 2
    assert "Error: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--seed=3"], "seed=3"),
        (["schedule.batch.8=4"], "'schedule.batch={8: …}'"),
        (["data.path=a=b (1)"], "quote"),
        (["seed"], "key=value"),
        (["devices=cray"], "auto"),
        (["data.path=nowhere"], "nowhere"),
    ],
)
def test_other_slips_are_refused_with_advice(arguments, hint, capsys):
    assert main(["train", *arguments]) == 2
    assert hint in capsys.readouterr().err


def test_an_unknown_command_is_refused_with_the_nearest_one(capsys):
    assert main(["smaple"]) == 2
    assert "'sample'" in capsys.readouterr().err


def test_a_typo_ends_the_process_with_2_and_without_traceback():
    result = train("modle.latent_size=5")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert "Did you mean 'model.latent_size'?" in result.stderr


def test_cfg_job_prints_the_composed_configuration():
    result = train("schedule.batch={8: 4}", "--cfg", "job", "seed=7")
    assert result.returncode == 0, result.stderr
    assert "    8: 4\n" in result.stdout
    assert "seed: 7\n" in result.stdout
    assert "gp_reference: official" in result.stdout


def test_multirun_trains_one_run_per_value(tiny_overrides, tmp_path):
    result = train("--multirun", *tiny_overrides, "seed=1,2", f"run_dir={tmp_path}/seed-${{seed}}", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "seed-1" / "generator.safetensors").is_file()
    assert (tmp_path / "seed-2" / "generator.safetensors").is_file()


def test_help_cut_short_by_its_reader_ends_quietly():
    command = f"{sys.executable} train.py --help | head -n 1"
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.startswith("Train")
    assert result.stderr == ""


def test_the_module_and_the_script_are_the_same_program():
    for command in (["-m", "pggan", "train"], ["train.py"]):
        result = subprocess.run(
            [sys.executable, *command, "--help"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        assert "Keys of configs/train.yaml" in result.stdout


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
