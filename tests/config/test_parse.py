"""Grids, lists of seeds and tables per resolution, as users write them."""

from math import inf, nan

import pytest

from pggan.config.train import parse_grid, per_resolution
from pggan.core.errors import UserError
from pggan.sampling.latents import parse_seeds


def test_seeds_are_read_in_all_their_forms():
    assert parse_seeds(5) == [5]
    assert parse_seeds("0-3") == [0, 1, 2, 3]
    assert parse_seeds("1,5,9-11") == [1, 5, 9, 10, 11]
    assert parse_seeds([1, 5]) == [1, 5]
    assert parse_seeds("7-7, 2") == [7, 2]
    assert parse_seeds("0-999999") == list(range(1_000_000))


@pytest.mark.parametrize("bad", ["", "a", "3-1", "-1", [1, "x"], "1-", [], "0-99999999999", "0-1000000"])
def test_what_is_no_list_of_seeds_is_refused(bad):
    with pytest.raises(UserError, match="seeds="):
        parse_seeds(bad)


def test_a_grid_is_columns_by_rows():
    assert parse_grid("8x4", "grid") == (8, 4)
    assert parse_grid("100x100", "grid") == (100, 100)


@pytest.mark.parametrize("bad", ["8", "8x", "x4", "0x4", "8x-4", "axb", "2x3x4", "100x101"])
def test_what_is_no_grid_is_refused_with_its_key(bad):
    with pytest.raises(UserError, match=rf"monitor\.grid={bad}"):
        parse_grid(bad, "monitor.grid")


def test_a_number_is_a_table_for_all_resolutions():
    assert per_resolution("batch", 16, 4, least=1, whole=True) == {4: 16}
    assert per_resolution("rate", {4: 0.5, 8: 1}, 4, least=0) == {4: 0.5, 8: 1}


@pytest.mark.parametrize("wrong", [True, "many", None, nan, inf, -inf, -1, [4]])
def test_an_entry_that_is_no_finite_number_in_range_is_refused(wrong):
    for value in (wrong, {4: 1, 8: wrong}):
        with pytest.raises(UserError, match=r"rate=.*\n.*number of at least 0"):
            per_resolution("rate", value, 4, least=0)


@pytest.mark.parametrize("entries", [{8: 1}, {}])
def test_a_table_covers_the_first_resolution(entries):
    with pytest.raises(UserError, match="no entry for 4x4"):
        per_resolution("batch", entries, 4, least=1)
    if entries:
        assert per_resolution("batch", entries, 8, least=1) == entries
        assert per_resolution("batch", entries, 16, least=1) == entries


@pytest.mark.parametrize("key", ["8", 12, 0, -4, 8.0])
def test_entries_are_for_powers_of_two(key):
    with pytest.raises(UserError, match="not a resolution"):
        per_resolution("batch", {4: 1, key: 1}, 4, least=1)
