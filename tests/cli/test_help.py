"""What --help shows."""

import pytest
import yaml

from pggan.cli.commands import COMMANDS, CONFIGS
from pggan.cli.help import help_text, overview


def test_the_overview_lists_every_command_with_its_duty():
    lines = overview().splitlines()
    for name, command in COMMANDS.items():
        assert any(line.startswith(f"  {name} ") and line.endswith(command.duty) for line in lines)


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_help_shows_an_example_and_every_key_with_its_comment(command):
    shown = help_text(command, [])
    assert command.example in shown
    text = command.config_file.read_text()
    for line in text.splitlines():
        if line.startswith("#"):
            assert line in shown
    for key in yaml.safe_load(text).keys() - {"defaults"}:
        assert f"\n  {key}:" in shown
    assert "???" not in shown or command.name != "train"


def test_help_shows_the_keys_of_the_default_groups():
    shown = help_text(COMMANDS["train"], [])
    for group, choice in COMMANDS["train"].groups.items():
        if choice != "null":
            assert f"Keys of configs/{group}/{choice}.yaml" in shown
            assert set((CONFIGS / group / f"{choice}.yaml").read_text().split()) <= set(shown.split())


def test_help_follows_the_chosen_groups():
    shown = help_text(COMMANDS["train"], ["loss=relativistic"])
    assert "loss=logistic|relativistic|wgan_gp" in shown
    assert "R2" in shown
    assert "R2" not in help_text(COMMANDS["train"], [])
    assert "Keys of configs/loss" not in help_text(COMMANDS["train"], ["loss=unknown"])
