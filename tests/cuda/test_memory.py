"""Training goes on, with one notice, on a card that turns out to be too small, and where a capture fails."""

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("cuda")]


@pytest.fixture(scope="module")
def found(program):
    return program("memory")


def complete(outcome):
    assert "error" not in outcome, outcome["error"]
    return outcome


def test_a_phase_for_which_the_card_is_too_small_takes_half_of_the_images_at_a_time(found):
    outcome = complete(found["too_small_for_the_next_phase"])
    (notice,) = outcome["notices"]
    assert notice.startswith("Out of memory at 32x32")
    assert "continues with 24" in notice
    assert outcome["images_per_pass"] == 24


def test_a_card_that_suffices_for_the_first_step_alone_takes_smaller_micro_batches(found):
    outcome = complete(found["too_small_for_moments"])
    assert outcome["notices"]
    assert all(notice.startswith("Out of memory at 8x8") for notice in outcome["notices"])
    assert outcome["images_per_pass"] < 64


def test_a_phase_whose_graphs_do_not_fit_trains_eagerly_and_says_so_once(found):
    outcome = complete(found["too_small_for_graphs"])["first"]
    (notice,) = outcome["notices"]
    assert "CUDA graphs do not fit into the memory" in notice
    assert not outcome["captured"]


def test_the_next_phase_is_captured_again(found):
    outcomes = complete(found["too_small_for_graphs"])
    assert outcomes["second"]["captured"]
    assert outcomes["second"]["notices"] == outcomes["first"]["notices"]


def test_a_step_that_can_not_be_captured_is_taken_eagerly(found):
    outcome = complete(found["waits_inside_a_capture"])
    (notice,) = outcome["notices"]
    assert "without CUDA graphs" in notice
    assert outcome["same_stream"]  # as before the capture
    assert outcome["grown_bytes"] == 0  # memory that steps give back is used again


def test_nothing_is_left_of_a_capture_whose_backward_pass_failed(found):
    outcome = complete(found["autograd_lags"])
    (notice,), (left,) = outcome["notices"], outcome["left_bytes"]
    assert "CUDA graphs do not fit into the memory" in notice
    assert left < 2**20  # less than one tensor of the pass, of 4 MiB: the inputs of the step
