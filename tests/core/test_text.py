"""The line that says what to do next, and durations."""

import shlex

import pytest

from pggan.cli.compose import compose
from pggan.core.text import duration, next_command


@pytest.mark.parametrize(
    "value",
    [
        *("a b", "it's", "a=b", "x,y", "[1]", "é/a(1)", "C:\\x\\", "~/a", "a$b", 'a "b"', "", "!x", "\\'", "null "),
        *("größe", "null", "True", "12", "1e5", "-.5", "nan", "Inf", "2026-11-26", "000050000", "v1.0"),
    ],
)
def test_a_shell_and_hydra_read_the_value_that_was_meant(value):
    first, *words = shlex.split(next_command("sample", run=value))
    assert (first, words[:2], len(words)) == ("Next:", ["pggan", "sample"], 3)
    assert compose("sample", words[2:])["run"] == value


def test_durations_have_a_fitting_unit():
    assert [duration(seconds) for seconds in (0.05, 119, 120, 9000)] == ["50 ms", "119 s", "2 min", "2.5 h"]
