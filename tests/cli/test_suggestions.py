"""Slips on the command line: names of other programs, keys of other choices, withdrawn keys, empty values."""

import pytest

from pggan.cli.main import main

SLIPS = {
    "lr=0.1": "schedule.learning_rate_g",
    "batch=16": "schedule.batch",
    "loss.gamma=3": "It is a key of loss=logistic and loss=relativistic.",
    "loss.gama=3": "Did you mean 'loss.gamma'? It is a key of loss=logistic and loss=relativistic.",
    "los.gamma=3": "loss.gamma",
    "loss.lambda=3": "Here it is loss.penalty_weight=",
    "schedule.lr=3": "Here it is schedule.learning_rate_g=",
    "kimg=25000": "schedule.total_images",
    "data=photos": "data.path=photos",
    "run_dir=": "not set",
    "compute.compile=true": "no longer there",
    "augmentation=diffaugment": "augmentation=ada takes its place",
    "zzzz=1": "--help lists the keys",
    "seed=1,2": "--multirun",
}


@pytest.mark.parametrize(("slip", "hint"), SLIPS.items())
def test_a_slip_is_refused_with_what_to_write(slip, hint, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "data.path=nowhere", *slip.split()]) == 2
    message = capsys.readouterr().err
    assert message.startswith("Error: ")
    assert hint in message
    assert not list(tmp_path.iterdir())


def test_names_of_other_programs_lead_to_keys_of_the_same_command(capsys):
    assert main(["prepare", "source=photos", "resolution=64"]) == 2
    assert "Did you mean 'max_resolution'?" in capsys.readouterr().err
