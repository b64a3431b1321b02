"""When something periodic is due, against counting one image at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pggan.core.intervals import is_due, is_nth_update, lies_between, multiples_between


@pytest.mark.slow
@given(st.integers(1, 50), st.integers(0, 300), st.integers(0, 100))
def test_multiples_are_counted_after_the_first_end_up_to_the_second(every, before, step):
    after = before + step
    assert multiples_between(every, before, after) == sum(count % every == 0 for count in range(before + 1, after + 1))


@given(st.integers(1, 50), st.lists(st.integers(1, 40), max_size=30))
def test_whatever_the_steps_each_multiple_is_due_once(every, steps):
    images = due = 0
    for step in steps:
        due += is_due(every, images, images + step) * multiples_between(every, images, images + step)
        images += step
    assert due == images // every


def test_a_step_that_ends_on_a_multiple_is_due_and_one_that_begins_there_is_not():
    assert is_due(100, 92, 100)
    assert not is_due(100, 100, 108)
    assert is_due(100, 96, 104)
    assert not is_due(100, 0, 99)


@given(st.integers(0, 60), st.lists(st.integers(1, 20), min_size=1, max_size=10))
def test_one_step_reaches_a_count_and_none_reaches_it_again(count, steps):
    ends = [sum(steps[: number + 1]) for number in range(len(steps))]
    reached = [after for before, after in zip([0, *ends], ends, strict=False) if lies_between(count, before, after)]
    assert reached == [after for after in ends if after >= count > 0][:1]


def test_every_nth_update_begins_with_the_first():
    batch = 16
    due = [update for update in range(20) if is_nth_update(8, update * batch, batch)]
    assert due == [0, 8, 16]
    assert all(is_nth_update(1, update * batch, batch) for update in range(20))


def test_an_update_counts_by_the_batches_that_fit_before_it():
    # After phases with other batches the images shown are no multiple of the batch: 40 images are 2 batches of 16.
    assert is_nth_update(2, 40, 16)
    assert not is_nth_update(2, 56, 16)
    assert is_nth_update(2, 72, 16)
