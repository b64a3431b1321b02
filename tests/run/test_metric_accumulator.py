"""Means over steps, from numbers that can be checked by hand."""

import math

import torch

from pggan.distributed.process_group import ProcessGroup
from pggan.run.metric_accumulator import MetricAccumulator

ALONE = ProcessGroup.single_process(torch.device("cpu"))


def test_values_are_averaged_over_numbers_skipped_updates_are_summed_and_norms_have_a_maximum_too():
    accumulator = MetricAccumulator()
    for loss, norm, skipped in (([1.0, 3.0], 5.0, 1.0), ([2.0, 6.0], 1.0, 1.0)):
        tensors = {"D/loss": torch.tensor(loss), "D/gradient_norm": torch.tensor(norm)}
        accumulator.add({**tensors, "D/skipped": torch.tensor(skipped)})
    found = {"D/loss": 3.0, "D/gradient_norm": 3.0, "D/gradient_norm_max": 5.0, "D/skipped": 2.0}
    assert accumulator.reduce(ALONE) == found
    assert accumulator.reduce(ALONE) == {}


def test_a_name_that_comes_sometimes_or_in_another_size_is_averaged_over_its_own_numbers():
    accumulator = MetricAccumulator()
    accumulator.add({"a": torch.tensor(1.0), "D/gradient_norm": torch.tensor(math.inf)})
    accumulator.add({"a": torch.tensor([3.0, 5.0]), "b": torch.tensor(7.0)})
    found = accumulator.reduce(ALONE)
    assert found == {"a": 3.0, "b": 7.0, "D/gradient_norm": math.inf, "D/gradient_norm_max": math.inf}


def test_what_was_added_can_be_forgotten_and_is_not_changed_later():
    accumulator, value = MetricAccumulator(), torch.tensor(1.0)
    accumulator.add({"a": value})
    accumulator.reset()
    accumulator.add({"a": value})
    value.fill_(9.0)  # the next step writes into the same memory
    assert accumulator.reduce(ALONE) == {"a": 1.0}
