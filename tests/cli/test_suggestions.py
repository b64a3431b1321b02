"""Slips on the command line: names of other programs, empty values, settings that would be ignored, unknown flags."""

import pytest

from pggan.cli.main import main
from pggan.cli.suggestions import SYNONYMS, names_in, suggestion
from pggan.config import SampleConfig, TrainConfig

SLIPS = {
    "lr=0.1": "schedule.learning_rate_g",
    "batch=16": "schedule.batch",
    "gamma=3": "loss.gamma",
    "loss.gamma=3": "It is a key of loss=logistic and loss=relativistic.",
    "loss.gama=3": "Did you mean 'loss.gamma', of loss=logistic and loss=relativistic?",
    "los.gamma=3": "Here it is loss.gamma=",
    "loss.lambda=3": "Here it is loss.penalty_weight=",
    "schedule.lr=3": "Here it is schedule.learning_rate_g=",
    "batch_siz=3": "Here it is schedule.batch=",
    "checkpoint.every=3": "Did you mean 'checkpoint.every_images'?",
    "augmentation.targt=0.5": "'augmentation.target', of augmentation=ada?",
    "kimg=25000": "schedule.total_images",
    "data=photos": "data.path=photos",
    "data=avatar": "Did you mean 'avatars'?",
    "run_dir=": "not set",
    "zzzz=1": "--help lists the keys",
    "seed=1,2": "--multirun",
    "hydra.run.dir=x": "run_dir=",
    "hydra.sweep.dir=x": "run_dir=",
    "hydra.verbose=true": "train.log",
    "hydra.job.chdir=true": "working directory",
    "hydra.job.name=x": "searchpath",
    "hydra/launcher=submitit_slurm": "--multirun",
    "--experiment demo": "experiment=demo",
    "--dry-run": "--cfg job",
    "--hlp": "Did you mean --help?",
    "--multi-run seed=1,2": "Did you mean --multirun?",
    "--schedule small": "schedule=small",
    "--config-dir nope": "--config-dir: there is no folder 'nope'.",
    "-cd=nope --multirun seed=1,2": "there is no folder 'nope'",
    "--config-dir nope --help": "there is no folder 'nope'",
    "--cfg job --config-dir": "experiment/, with files of your own",
    "-n": "pggan plan",
    "-sc install=bash": "--completion",
    "--config-name config --config-dir x": "run_dir=DIR",
    "--resolve": "--cfg job",
    "--multirun lr=1,2": "schedule.learning_rate_g",
    "--multirun seed=1,2 loss=wgan,logistic": "'wgan_gp'",
    "--multirun hydra.sweep.dir=x hydra/launcher=submitit_local": "run_dir=",
}


@pytest.mark.parametrize(("slip", "hint"), SLIPS.items())
def test_a_slip_is_refused_with_what_to_write(slip, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data.path=nowhere", *slip.split()]) == 2
    message = capsys.readouterr().err
    assert message.startswith("Error: ")
    assert hint in message
    assert not list(tmp_path.iterdir())


def test_names_of_other_programs_lead_to_keys_that_exist():
    fields = {**TrainConfig.__dataclass_fields__, **SampleConfig.__dataclass_fields__}
    for text in SYNONYMS.values():
        assert text.partition("=")[0].partition(".")[0] in fields


def test_names_of_other_programs_lead_to_keys_of_the_same_command(capsys):
    assert main(["prepare", "source=photos", "resolution=64"]) == 2
    assert "Did you mean 'max_resolution'?" in capsys.readouterr().err


def test_the_last_part_of_a_key_is_enough_to_find_it():
    assert suggestion("cache", {"data.cache", "seed"}) == "Did you mean 'data.cache'?"
    assert suggestion("sead", {"data.cache", "seed"}) == "Did you mean 'seed'?"
    assert suggestion("zzzz", {"data.cache", "seed"}) == "Valid names: data.cache, seed."


BASES = {
    "below": "\n  - wgan_gp  # as in the paper\n  - _self_",
    "not indented": "\n- wgan_gp",
    "in brackets": " [wgan_gp]",
}


@pytest.mark.parametrize("defaults", BASES.values(), ids=BASES)
def test_a_file_has_the_names_of_the_files_that_it_is_based_on(defaults, tmp_path):
    (tmp_path / "loss").mkdir()
    (tmp_path / "loss" / "mine.yaml").write_text(f"# gamma: 3\ndefaults:{defaults}\nown: 0.01\n")
    assert names_in("loss", "mine", str(tmp_path)) == names_in("loss", "wgan_gp") | {"own"}
    assert names_in("loss", "mine") == set()
