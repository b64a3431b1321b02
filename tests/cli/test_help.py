"""What --help shows."""

import re

import pytest
import yaml

from pggan.cli.commands import COMMANDS
from pggan.cli.help import STAGES, help_text, overview

SCREEN = 50  # lines of a terminal window that is not small


@pytest.fixture(autouse=True)
def columns(monkeypatch):
    """The width of a terminal window that is not large."""
    monkeypatch.setenv("COLUMNS", "80")
    return 80


def test_the_overview_lists_every_command_once_with_its_duty_by_stage(columns):
    lines = overview().splitlines()
    words = " ".join(overview().split())
    for name, command in COMMANDS.items():
        assert words.count(f" {name} {command.duty}") == 1
    assert [line for line in lines if line in STAGES] == list(STAGES)
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= columns


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_help_fits_a_screen_with_an_example_first_and_a_line_per_key(command, columns):
    shown = help_text(command, [])
    lines = shown.splitlines()
    assert f"\n\nUsage: pggan {command.name} key=value …\nExample: {command.example}\n\n" in as_the_shell_reads(shown)
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= columns
    for key in yaml.safe_load(command.config_file.read_text()).keys() - {"defaults"}:
        assert f"\n  {key}=" in shown or f"\n  {key}.*" in shown
    assert all(f"\n  {group}= " in shown for group in command.groups)


def as_the_shell_reads(text: str) -> str:
    """`text` with lines that end in a backslash joined, and single spaces."""
    return re.sub(" +", " ", text.replace("\\\n", ""))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_help_all_shows_every_key_with_its_comment(command):
    shown = help_text(command, ["all"])
    assert command.example in as_the_shell_reads(shown)
    text = command.config_file.read_text()
    for line in text.splitlines():
        if line.startswith("#"):
            assert line in shown
    for key in yaml.safe_load(text).keys() - {"defaults"}:
        assert f"\n  {key}:" in shown
    assert "???" not in shown or command.name != "train"


def test_help_all_follows_the_chosen_groups():
    shown = help_text(COMMANDS["plan"], ["all", "loss=relativistic"])
    assert "Keys of configs/train.yaml" in shown
    assert "loss=logistic|relativistic|wgan_gp" in shown
    assert "R2" in shown
    assert "R2" not in help_text(COMMANDS["train"], ["all"])
