"""Completion in the shell."""

import shutil
import subprocess

import pytest

from pggan.cli.commands import COMMANDS
from pggan.cli.completion import SHELLS, candidates, script
from pggan.cli.main import main
from pggan.core.errors import UserError


def test_commands_keys_and_files_of_groups_are_completed():
    assert candidates("pggan tr") == ["train"]
    assert set(candidates("pggan ")) >= {"train", "sample", "doctor"}
    assert candidates("pggan train see") == ["seed="]
    assert candidates("pggan train seed=1 loss=") == ["loss=", "loss=logistic", "loss=relativistic", "loss=wgan_gp"]
    assert "schedule.batch=" in candidates("pggan train schedule.")
    assert candidates("pggan train ema.") == ["ema.half_life_images=", "ema.rampup=", "ema.decay_per_update="]
    assert "scaling" in candidates("pggan bench ")
    assert candidates("pggan sample run=outputs/") == []  # a path: the shell's own business


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
