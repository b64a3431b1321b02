"""Keys of the schedule, and values with a notation of their own: tables, their merging, larger batches."""

import pytest

from tests.composed import train_config


def schedule_of(*overrides):
    return train_config(*overrides).schedule.build()


@pytest.mark.slow
def test_per_level_values_take_a_number_or_a_table_and_tables_merge():
    assert schedule_of("schedule.batch=8").at(0).batch == 8
    merged = schedule_of("schedule=official_1gpu", "schedule.batch={4: 64}")
    assert (merged.phases[0].batch, merged.phases[-1].batch) == (64, 4)
    extended = schedule_of("schedule=official_1gpu", "schedule.batch={16: 100}")
    assert [extended.batch[side] for side in (4, 16, 32)] == [128, 100, 64]
    replaced = schedule_of("schedule=official_1gpu", "schedule.batch=12")
    assert {phase.batch for phase in replaced.phases} == {12}


def test_larger_batches_take_learning_rates_larger_by_their_root():
    base, larger = schedule_of(), schedule_of("schedule.batch_factor=4")
    for before, now in zip(base.phases, larger.phases, strict=True):
        assert now.batch == 4 * before.batch
        assert now.learning_rate_g == pytest.approx(2 * before.learning_rate_g)
        assert now.learning_rate_d == pytest.approx(2 * before.learning_rate_d)
        assert (now.start, now.end) == (before.start, before.end)  # images are the clock
