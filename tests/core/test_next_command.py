"""The line that says what to do next."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from pggan.core.next_command import next_command


def test_plain_values_stand_as_they_are_before_the_other_words():
    assert next_command("sample", "seeds=0-63", run="outputs/a") == "Next: pggan sample run=outputs/a seeds=0-63"


@pytest.mark.parametrize(
    "value", ["a b", "it's", "a=b", "x,y", "[1]", "é/a(1)", "C:\\x\\", "~/a", "a$b", 'a "b"', "", "!x", "\\'", "null "]
)
def test_a_shell_and_hydra_read_the_value_that_was_meant(value):
    first, *words = shlex.split(next_command("sample", run=value))
    assert (first, words[:2], len(words)) == ("Next:", ["pggan", "sample"], 3)
    assert OverridesParser.create().parse_override(words[2]).value() == value


def test_of_several_values_each_is_quoted():
    assert next_command("prepare", source=["photos", "more faces.zip"]) == (
        "Next: pggan prepare \"source=[photos,'more faces.zip']\""
    )
