"""Keys of the schedule, and values with a notation of their own: tables, their merging, larger batches."""

import pytest

from pggan.config.train import ScheduleConfig
from pggan.config.validation import validated
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


def test_every_key_of_the_schedule_reaches_it():
    values = {
        "first_resolution": 8,
        "final_resolution": 16,
        "stable_images": 30,
        "fade_images": {16: 20},
        "batch": 4,
        "learning_rate_g": 0.5,
        "learning_rate_d": 0.25,
        "batch_factor": 1,
        "lr_warmup_images": 8,
        "lr_decay_images": 10,
        "total_images": 100,
    }
    schedule = validated(ScheduleConfig, values).build()
    assert [(phase.name, phase.start, phase.end) for phase in schedule.phases] == [
        ("8x8 stable", 0, 30),
        ("16x16 fade", 30, 50),
        ("16x16 stable", 50, 100),
    ]
    assert {phase.batch for phase in schedule.phases} == {4}
    assert [schedule.at(images).learning_rate_g for images in (0, 4, 95)] == [0.25, 0.5, 0.25]  # warm-up 8, decay 10
    assert [schedule.at(images).learning_rate_d for images in (0, 4, 95)] == [0.125, 0.25, 0.125]


def test_larger_batches_take_learning_rates_larger_by_their_root():
    base, larger = schedule_of(), schedule_of("schedule.batch_factor=4")
    for before, now in zip(base.phases, larger.phases, strict=True):
        assert now.batch == 4 * before.batch
        assert now.learning_rate_g == pytest.approx(2 * before.learning_rate_g)
        assert now.learning_rate_d == pytest.approx(2 * before.learning_rate_d)
        assert (now.start, now.end) == (before.start, before.end)  # images are the clock
