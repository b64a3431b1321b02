"""Numbers as people read them."""

import pytest

from pggan.core.formatting import duration, three_digits


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.0009, "0"),
        (0.001, "0.001"),
        (1.2345, "1.23"),
        (99.94, "99.9"),
        (123.4, "123"),
        (1234567.8, "1,234,568"),
    ],
)
def test_numbers_have_three_digits_or_all_before_the_point(value, text):
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.0035, "3.5 ms"),
        (0.1, "0.1 s"),
        (1.5, "1.5 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172_800, "2 d"),
        (400_000, "4.63 d"),
    ],
)
def test_durations_are_in_the_largest_unit_of_which_there_are_two_or_in_short_ones(seconds, text):
    assert duration(seconds) == text
