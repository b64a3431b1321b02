"""Steps of every kind run on CUDA, are captured and replayed while the networks grow, and never make the host wait."""

from itertools import combinations

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]
CONFIGURATIONS = 12


@pytest.fixture(scope="module")
def found(program):
    return program("steps")


def complete(outcome):
    assert "error" not in outcome, f"{outcome['about']}: {outcome['error']}"
    return outcome


@pytest.mark.parametrize("number", range(CONFIGURATIONS))
def test_every_kind_of_step_is_captured_and_replayed_in_every_phase(found, number):
    outcome = complete(found["captured"][number])
    kinds = outcome["about"]["reg_interval"]  # with penalties and without
    assert outcome["notices"] == []
    assert outcome["captures"] == [kinds] * 3
    assert outcome["replays"] == [kinds] * 3


def test_steps_with_pretrained_features_are_captured_and_never_wait(found):
    if "projected" not in found:
        pytest.skip("the weights of efficientnet-lite0 are not installed")
    for outcome in found["projected"]:
        assert complete(outcome)["notices"] == []
        assert (outcome["captures"], outcome["replays"], outcome["steady"]) == ([2] * 3, [2] * 3, [])


def test_no_kernel_has_failed(found):
    assert found["fused_kernels"]


def test_any_two_values_of_two_options_are_tried_together(found):
    tried = [outcome["about"] for outcome in found["captured"]]
    assert len(tried) == CONFIGURATIONS
    for one, other in combinations(tried[0], 2):
        values = {about[one] for about in tried}, {about[other] for about in tried}
        assert len(values[0]) > 1
        assert {(about[one], about[other]) for about in tried} == {(a, b) for a in values[0] for b in values[1]}


@pytest.mark.parametrize("way", ["captured", "eager"])
def test_a_steady_step_makes_no_wait_no_pageable_copy_and_takes_no_memory_from_the_system(found, way):
    for outcome in found[way]:
        assert complete(outcome)["steady"] == [], outcome["about"]


def test_steps_that_are_not_captured_say_nothing(found):
    assert all(complete(outcome)["notices"] == [] for outcome in found["eager"])
