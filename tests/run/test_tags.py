"""Every tag of a run is explained, and has its place in the charts."""

import re
from itertools import chain

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from pggan.run.alarms import RULES
from pggan.run.tags import DESCRIPTIONS, LAYOUT, PHASES, description
from tests.losses.critics import FAKE, LOGISTIC, REAL

PATTERNS = [pattern for charts in [PHASES, *LAYOUT.values()] for pattern in chain(*charts.values())]


@pytest.fixture(scope="module")
def tags(finished_run):
    return EventAccumulator(str(finished_run)).Reload().Tags()


def test_every_tag_is_explained(tags):
    found = [*tags["scalars"], *tags["images"], *tags["histograms"], *(f"alarms/{name}" for name in RULES)]
    found += [tag for tag in tags["tensors"] if not tag.startswith("custom_scalars")]
    assert [tag for tag in found if not description(tag)] == []
    assert len(found) > 40


def test_every_curve_has_a_chart_but_those_of_hours(tags):
    assert [tag for tag in tags["scalars"] if not any(re.search(pattern, tag) for pattern in PATTERNS)] == [
        "speed/hours"
    ]


def test_a_tag_is_explained_once(tags):
    for tag in tags["scalars"]:
        matches = [pattern for pattern in DESCRIPTIONS if re.fullmatch(pattern, tag)]
        assert len(matches) == 1, (tag, matches)


def test_words_of_scores_losses_and_pictures_differ(tags):
    """`fakes` alone is no tag: the loss on fakes, their scores and their pictures are three things."""
    terms = {*LOGISTIC.d_terms(REAL, FAKE), *LOGISTIC.g_terms(None, FAKE)}
    assert terms == {"D/loss_reals", "D/loss_fakes", "G/loss_fakes"}
    assert all(description(tag) for tag in terms)
    assert not {*tags["scalars"]} & {*tags["images"]}


def test_the_only_term_of_g_is_not_repeated(tags):
    assert "G/loss" in tags["scalars"]
    assert "G/wasserstein" not in tags["scalars"]
