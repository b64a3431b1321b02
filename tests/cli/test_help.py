"""What --help shows."""

import re

import pytest

from pggan.cli.commands import COMMANDS, STAGES
from pggan.cli.main import main

SCREEN = 50  # lines of a terminal window that is not small
COLUMNS = 80


@pytest.fixture
def shown(capsys):
    """What a command line prints."""

    def printed(*words):
        assert main(list(words)) == 0
        return capsys.readouterr().out

    return printed


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["help"], []])
def test_the_overview_lists_every_command_once_with_its_duty_by_stage(words, shown):
    lines = shown(*words).splitlines()
    for name, command in COMMANDS.items():
        assert " ".join(" ".join(lines).split()).count(f" {name} {command.duty}") == 1
    assert [line for line in lines if line in STAGES] == list(STAGES)
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= COLUMNS


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda command: command.name)
def test_help_has_an_example_all_keys_with_their_comments_and_the_choices(command, shown):
    text = shown(*command.name.split(), "--help")
    as_the_shell_reads = re.sub(" +", " ", text.replace("\\\n", ""))
    assert f"\n\nUsage: pggan {command.name} key=value …\nExample: {command.example}\n\n" in as_the_shell_reads
    assert command.example.startswith(f"pggan {command.name} ")
    assert all(f"  {line}".rstrip() in text for line in command.config_file.read_text().splitlines())
    assert all(f"\n  {group}= " in text for group in command.groups)


def test_help_follows_the_chosen_groups(shown):
    assert "R2" in shown("train", "loss=relativistic", "--help")
    assert "R2" not in shown("train", "--help")
