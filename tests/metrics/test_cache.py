"""Numbers of real images are kept; a damaged or foreign file is made anew, and a full disk costs nothing but time."""

import os

import pytest
import torch

from pggan.metrics.cache import cached

FACTS = {"statistic": "features", "data": "abc", "resolution": 16, "images": 3}


@pytest.fixture
def ask(alone):
    """Ask for the numbers of FACTS; returns them, and whether they were calculated."""

    def call(**facts):
        calls = []
        made = cached(FACTS | facts, lambda: calls.append(1) or torch.arange(3.0), alone)
        assert made.tolist() == [0, 1, 2]
        return bool(calls)

    return call


def test_numbers_are_calculated_once(ask, cache):
    assert [ask(), ask()] == [True, False]
    (file,) = cache.iterdir()
    assert file.name.startswith("features-")
    assert file.suffix == ".safetensors"


@pytest.mark.parametrize("fact", [{"data": "abd"}, {"resolution": 32}, {"images": 4}, {"extractor": "pixels"}])
def test_every_fact_counts(ask, fact):
    assert ask()
    assert ask(**fact)


@pytest.mark.parametrize("damage", [b"", b"x" * 50, None], ids=["empty", "nonsense", "a flipped bit"])
def test_a_damaged_file_is_made_anew(ask, cache, damage):
    ask()
    (file,) = cache.iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(bytes(content) if damage is None else damage)
    assert [ask(), ask()] == [True, False]


def test_a_file_of_other_facts_under_this_name_is_not_taken(ask, cache):
    ask()
    (file,) = cache.iterdir()
    ask(data="abd")
    (other,) = set(cache.iterdir()) - {file}
    os.replace(other, file)
    assert ask()


def test_a_cache_that_is_no_directory_costs_nothing_but_time(ask, cache):
    cache.parent.mkdir(parents=True)
    cache.write_text("")
    assert [ask(), ask()] == [True, True]
