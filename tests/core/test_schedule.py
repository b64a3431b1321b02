"""The schedule, against the official presets and the paper's appendix A.1."""

import math
from dataclasses import replace
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pggan.core.schedule import Schedule
from tests.composed import train_config

RESOLUTIONS = (4, 8, 16, 32, 64, 128, 256, 512, 1024)

# Images per update at 4 … 1024, and learning rates where they are not 0.001.
PRESETS = {
    "official_1gpu": ((128, 128, 128, 64, 32, 16, 8, 4, 4), {1024: 0.0015}),
    "official_2gpus": ((256, 256, 128, 64, 32, 16, 8, 8, 8), {512: 0.0015, 1024: 0.002}),
    "official_4gpus": ((512, 256, 128, 64, 32, 16, 16, 16, 16), {256: 0.0015, 512: 0.002, 1024: 0.003}),
    "official_8gpus": ((512, 256, 128, 64, 32, 32, 32, 32, 32), {128: 0.0015, 256: 0.002, 512: 0.003, 1024: 0.003}),
    "paper": ((16, 16, 16, 16, 16, 16, 14, 6, 3), {}),
}


@cache
def preset(name):
    overrides = ["experiment=paper_1024"] if name == "paper" else [f"schedule={name}"]
    return train_config(*overrides).schedule.build()


def make(**changes):
    values = {
        "first_resolution": 4,
        "final_resolution": 16,
        "stable_images": {4: 100},
        "fade_images": {4: 50},
        "batch": {4: 8},
        "learning_rate_g": {4: 0.001},
        "learning_rate_d": {4: 0.002},
        "total_images": None,
    }
    return Schedule(**(values | changes))


def official(images, stable, final=1024, first=4):
    """Resolution and alpha by the level-of-detail arithmetic of the official code, all phases of one length."""
    levels = int(math.log2(final // first))
    position = images / (2 * stable)  # one training and one transition phase make one unit
    finished = int(position)
    into_fade = max(images - finished * 2 * stable - stable, 0) / stable
    level_of_detail = max(levels - finished - into_fade, 0.0)
    resolution = final // 2 ** math.floor(level_of_detail)
    return resolution, 1 - (level_of_detail - math.floor(level_of_detail))


# ---- the presets -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRESETS)
def test_presets_have_the_official_batches_and_rates_and_follow_the_official_level_of_detail(name):
    batches, rates = PRESETS[name]
    length, total = (800_000, 19_000_000) if name == "paper" else (600_000, 12_000_000)  # images of a phase, and in all
    for images in range(0, total, 12_347):
        phase = preset(name).at(images)
        resolution, alpha = official(images, length)
        # A fade's first image is, in the official arithmetic, the last moment of the lower level: the same function.
        if phase.fading and phase.alpha == 0:
            continue
        assert phase.resolution == resolution
        assert phase.alpha == pytest.approx(alpha, abs=1e-6)
        assert phase.batch == batches[RESOLUTIONS.index(resolution)]
        assert phase.learning_rate_g == phase.learning_rate_d == rates.get(resolution, 0.001)
    assert preset(name).total == total


# ---- properties ------------------------------------------------------------------------------------------


@st.composite
def schedules(draw, least_images=0):
    first = 2 ** draw(st.integers(2, 4))
    final = first * 2 ** draw(st.integers(0, 4))
    keys = [4, *draw(st.sets(st.sampled_from([8, 16, 32, 64, 128, 256])))]

    def table(values):
        return {key: draw(values) for key in keys}

    lengths = st.integers(least_images, 500)
    return Schedule(
        first_resolution=first,
        final_resolution=final,
        stable_images=table(lengths),
        fade_images=table(lengths),
        batch=table(st.integers(1, 64)),
        learning_rate_g=table(st.floats(0, 1)),
        learning_rate_d=table(st.floats(0, 1)),
        batch_factor=draw(st.integers(1, 4)),
        lr_warmup_images=draw(st.just(0) | st.integers(1, 600)),
        lr_decay_images=draw(st.just(0) | st.integers(1, 3000)),
        total_images=draw(st.none() | st.integers(1, 8000)),
    )


@given(schedules())
def test_phases_follow_one_another_without_gaps_and_cover_the_whole_run(schedule):
    phases = schedule.phases
    assert phases[0].start == 0
    for index, phase in enumerate(phases):
        assert phase.index == index
        assert phase.start < phase.end or (phase is phases[-1] and phase.start == phase.end)  # no empty ones before it
        assert index == 0 or phase.start == phases[index - 1].end
    assert schedule.total <= phases[-1].end
    assert phases[-1].resolution == schedule.final_resolution
    assert not phases[-1].fading


# ---- single cases ----------------------------------------------------------------------------------------


def test_a_total_below_the_sum_stops_early_and_one_beyond_prolongs_the_last_phase():
    short, whole, long = make(total_images=120), make(), make(total_images=1000)
    assert (short.total, long.total, long.phases[-1].start, long.phases[-1].end) == (120, 1000, 300, 1000)
    assert [short.at(images) for images in range(120)] == [whole.at(images) for images in range(120)]
    assert short.at(119).alpha == pytest.approx(19 / 50)  # still fading


def test_learning_rates_fall_evenly_to_0_over_the_last_images():
    schedule = make(lr_decay_images=100)  # of 400 in all
    rates = {0: 1, 150: 1, 299: 1, 300: 1, 325: 0.75, 350: 0.5, 399: 0.01, 400: 0, 10_000: 0}
    for images, share in rates.items():
        phase = schedule.at(images)
        assert phase.learning_rate_g == pytest.approx(0.001 * share, abs=1e-12)
        assert phase.learning_rate_d == pytest.approx(0.002 * share, abs=1e-12)
    assert schedule.at(350).alpha == make().at(350).alpha


def test_learning_rates_fall_over_half_of_a_training_that_is_cut_short_at_most():
    schedule = make(lr_decay_images=150, total_images=200)
    assert [schedule.at(images).learning_rate_g for images in (99, 150)] == pytest.approx([0.001, 0.0005])


def test_learning_rates_rise_evenly_over_the_first_images_of_every_phase():
    schedule = make(lr_warmup_images=40)
    for phase in schedule.phases:
        at = [schedule.at(phase.start + shown) for shown in (0, 40 - phase.batch, 40, phase.end - phase.start - 1)]
        shares = [phase.batch / 40, 1, 1, 1]
        assert [now.learning_rate_g / phase.learning_rate_g for now in at] == pytest.approx(shares)
        assert [now.learning_rate_d / phase.learning_rate_d for now in at] == pytest.approx(shares)


@given(st.integers(1, 60), st.integers(0, 60), st.integers(1, 9), st.integers(1, 9), st.integers(1, 400))
def test_updates_per_phase_are_those_of_a_run(stable, fade, first, then, total):
    schedule = make(stable_images={4: stable}, fade_images={4: fade}, batch={4: first, 8: then}, total_images=total)
    counts, images = [0] * len(schedule.phases), 0
    while images < total:
        phase = schedule.at(images)
        counts[phase.index] += 1
        images += phase.batch
    assert list(schedule.steps()) == counts


@given(schedules(), st.data())
def test_phases_on_the_way_take_other_lengths_and_the_last_one_its_own(schedule, data):
    schedule = replace(schedule, total_images=None)
    lengths = [data.draw(st.integers(1, 500)) for _ in schedule.growth_images]
    other = schedule.with_growth(lengths)
    assert [phase.end - phase.start for phase in other.phases[:-1]] == lengths == [*other.growth_images]
    assert [phase.name for phase in other.phases] == [phase.name for phase in schedule.phases]
    last, own = other.phases[-1], schedule.phases[-1]
    assert last.end - last.start == own.end - own.start
    assert other.with_growth(schedule.growth_images).phases == schedule.phases
