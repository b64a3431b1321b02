"""Means of numbers, and each alarm: by numbers that raise it, and by others."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pggan.distributed.process_group import ProcessGroup, rank_from_environment
from pggan.run.health import REMEDIES, Alarms, MetricAccumulator, means
from tests.processes import in_processes, values_of


def test_values_are_averaged_over_numbers_skipped_updates_are_summed_and_norms_have_a_maximum_too():
    accumulator, value = MetricAccumulator(), torch.tensor(1.0)
    for loss, norm, skipped in (([1.0, 3.0], 5.0, 1.0), ([2.0, 6.0], 1.0, 1.0)):
        tensors = {"D/loss": torch.tensor(loss), "D/gradient_norm": torch.tensor(norm)}
        accumulator.add({**tensors, "D/skipped": torch.tensor(skipped)})
    accumulator.add({"sometimes": value})
    value.fill_(9.0)  # the next step writes into the same memory
    expected = {"D/loss": 3.0, "D/gradient_norm": 3.0, "D/gradient_norm_max": 5.0, "D/skipped": 2.0, "sometimes": 1.0}
    found = accumulator.take()
    assert found["D/loss"].tolist() == [1.0, 3.0, 2.0, 6.0]
    alone = ProcessGroup.single_process(torch.device("cpu"))
    assert means(found, alone) == expected
    assert means(accumulator.take(), alone) == {}


def means_of_a_rank():
    """As one of two: losses 1, and 2 and 6; the same update is skipped on both."""
    group = ProcessGroup.connect(rank_from_environment(), torch.device("cpu"))
    mine = {"D/loss": [[1.0], [2.0, 6.0]][group.rank], "D/skipped": [1.0], "D/gradient_norm": [3.0 + group.rank]}
    found = means({name: np.array(each, np.float32) for name, each in mine.items()}, group)
    group.shutdown()
    return found


@pytest.mark.slow
def test_means_are_of_the_numbers_of_all_ranks_and_an_update_that_all_skip_counts_once():
    expected = {"D/loss": 3.0, "D/skipped": 1.0, "D/gradient_norm": 3.5, "D/gradient_norm_max": 4.0}
    assert values_of(in_processes(2, means_of_a_rank)) == [expected, expected]


QUIET = {"D/gradient_norm_max": 2.0, "G/gradient_norm_max": 3.0, "D/skipped": 0.0, "G/skipped": 0.0}


def raised(alarms: Alarms, ticks: list[dict[str, float]], resolution: int = 32) -> tuple[list[list[str]], list[str]]:
    """The names of the alarms that hold at each tick, and all that is said."""
    found, said = [], []
    for numbers in ticks:
        scalars, texts = alarms.at_tick(resolution, numbers, rates_fall="rates_fall" in numbers)
        assert scalars["health/alarms"] == sum(scalars[f"alarms/{name}"] for name in REMEDIES)
        found.append([name for name in REMEDIES if scalars[f"alarms/{name}"]])
        said += texts
    return found, said


def test_an_alarm_holds_as_long_as_its_numbers_and_is_said_once_per_resolution():
    alarms, skipped = Alarms(0.8), QUIET | {"G/skipped": 3.0}
    found, (text,) = raised(alarms, [QUIET, skipped, skipped, QUIET, skipped])
    assert found == [[], ["gradients"], ["gradients"], [], ["gradients"]]
    assert text == f"Skipped 3 updates of G: gradients were NaN or infinite. {REMEDIES['gradients']}."
    assert raised(alarms, [skipped], resolution=64) == ([["gradients"]], [text])


def test_while_learning_rates_fall_d_may_know_nearly_all_reals():
    alarms, high = Alarms(0.8), QUIET | {"health/reals_sign": 0.95}
    for resolution in (32, 64):  # where scores begin anew
        assert raised(alarms, [high] * 12, resolution)[0] == [*[[]] * 11, ["overfitting"]]
    assert raised(Alarms(0.8), [high | {"rates_fall": 1.0}] * 20)[1] == []
    assert raised(Alarms(0.96), [high] * 20)[1] == []


TAGS = ["D/gradient_norm_max", "G/gradient_norm_max", "G/skipped", "health/reals_sign"]


@given(st.lists(st.dictionaries(st.sampled_from(TAGS), st.sampled_from([0.0, -0.0, 1.0, -1e30, math.inf, math.nan]))))
def test_no_numbers_of_a_run_make_alarms_fail(ticks):
    """Least of all the numbers of a run that goes wrong, which alarms are for."""
    alarms = Alarms(0.8)
    for scalars in ticks:
        alarms.at_tick(32, scalars, rates_fall=False)


def test_a_gradient_is_compared_with_the_median_of_what_came_before_it():
    """Not with itself, nor with one that was not finite."""
    alarms = Alarms(0.8)
    peaks = [2.0, 1.0, 1.0, 9.0, 100.0, 550.0, math.inf, 2.0, 250.0]
    found, _ = raised(alarms, [{"D/gradient_norm_max": peak} for peak in peaks])
    # The medians are 2, 1.5, 1, 1.5, 2, 5.5, 5.5, 2: a hundred times that is no alarm.
    assert [bool(names) for names in found] == [False, False, False, False, False, True, False, False, True]
    assert raised(Alarms(0.8), [{"D/gradient_norm_max": 1e12}] * 20)[1] == []
