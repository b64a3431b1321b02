"""Completion in the shell."""

import shutil
import subprocess

import pytest

from pggan.cli.commands import COMMANDS
from pggan.cli.completion import SHELLS, candidates, keys_of, script, values_of
from pggan.cli.main import main
from pggan.config import TrainConfig
from pggan.core.errors import UserError
from pggan.core.validation import validated
from tests.composed import composed


def test_commands_keys_and_files_of_groups_are_completed():
    assert candidates("pggan tr") == ["train"]
    assert set(candidates("pggan ")) >= {"train", "sample", "doctor"}
    assert candidates("pggan train see") == ["seed="]
    assert candidates("pggan train seed=1 loss=") == ["loss=", "loss=logistic", "loss=relativistic", "loss=wgan_gp"]
    assert "schedule.batch=" in candidates("pggan train schedule.")
    assert candidates("pggan train ema.") == ["ema.half_life_images=", "ema.rampup=", "ema.decay_per_update="]
    assert "scaling" in candidates("pggan bench ")
    assert candidates("pggan plan compute.comp") == ["compute.compile="]  # one of training
    assert candidates("pggan sample run=outputs/") == []  # a path: the shell's own business


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("train precision=", ["", "auto", "fp32", "tf32", "bf16", "fp16"]),
        ("train seed=3 precision=f", ["fp32", "fp16"]),
        ("train monitor.console=", ["", "auto", "plain", "quiet", "verbose"]),
        ("train elastic=", ["", "false", "true"]),
        ("bench precisions=a", []),  # a list
        ("train seed=", [""]),
        ("train loss.name=l", []),
        ("train nothing.at.all=", []),
    ],
)
def test_values_are_completed_where_there_are_only_a_few(line, values):
    key = line.split()[-1].partition("=")[0]
    assert candidates(f"pggan {line}") == [f"{key}={value}" for value in values]


def test_values_that_are_completed_are_taken():
    for key in keys_of(COMMANDS["train"], ""):
        for value in values_of(COMMANDS["train"], key.removesuffix("=")):
            validated(TrainConfig, composed("train", [f"{key}{value}"]))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_keys_to_complete(name):
    assert any(candidate.endswith("=") for candidate in candidates(f"pggan {name} "))


def test_the_answers_are_printed(capsys):
    assert main(["--complete", "pggan inter"]) == 0
    assert capsys.readouterr().out == "interpolate\n"
    assert main(["--completion", "bash"]) == 0
    assert "complete -o default -F _pggan pggan" in capsys.readouterr().out
    with pytest.raises(UserError, match="no completion for 'bsh'"):
        script("bsh")


def test_bash_replaces_what_comes_after_the_equals_sign():
    if shutil.which("bash") is None:
        pytest.skip("there is no bash")
    stub = 'pggan() { printf "loss=logistic\\n"; }'
    ask = 'COMP_LINE="pggan train loss=l"; COMP_POINT=${#COMP_LINE}; _pggan; echo "${COMPREPLY[@]}"'
    run = subprocess.run(["bash", "-c", f"{SHELLS['bash']}\n{stub}\n{ask}"], capture_output=True, text=True, check=True)
    assert run.stdout == "logistic\n"
