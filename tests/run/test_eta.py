"""Time left: true from the start where phases were measured, and soon where it was not; and ending in given hours."""

import json
from dataclasses import replace
from datetime import datetime

import pytest

from pggan.core.schedule import Schedule
from pggan.run.eta import TRAINING_SHARE, Eta, TimeLimit, expected_end, too_long, with_plan
from pggan.training.timing import PhaseTimes

TABLES = {key: {4: 16} for key in ("batch", "learning_rate_g", "learning_rate_d")}
STABLE, FADES = {4: 1500, 8: 2500, 16: 5000, 32: 40_000}, {8: 1500, 16: 3000, 32: 5000}
DEMO = Schedule(first_resolution=4, final_resolution=32, stable_images=STABLE, fade_images=FADES, **TABLES)
SECONDS = {4: 0.0010, 8: 0.0031, 16: 0.0056, 32: 0.0050}  # of an image of the demo on two cores (lab book)


def phase_times(seconds, *, measured=True):
    return PhaseTimes(
        tuple(seconds[phase.resolution] for phase in DEMO.phases), measured=frozenset(SECONDS if measured else ())
    )


def run(eta, true_seconds, tick=500):
    """(elapsed, predicted total) at every tick of a run whose images take `true_seconds` by resolution."""
    now, found = 0.0, []
    for images in range(tick, DEMO.total, tick):
        now += tick * true_seconds[DEMO.at(images - 1).resolution]
        eta.observe(images, now)
        found.append((now, now + eta.seconds_left(images)))
    return found


def total(true_seconds):
    return phase_times(true_seconds).seconds(DEMO, 0, DEMO.total)


def worst(found, actual, after):
    return max(abs(predicted / actual - 1) for elapsed, predicted in found if elapsed >= after)


def test_a_measured_pace_is_true_at_the_first_tick():
    found = run(Eta(DEMO, phase_times(SECONDS), 0, 0.0), SECONDS)
    assert [predicted for _, predicted in found] == pytest.approx([total(SECONDS)] * len(found))


def test_a_machine_that_is_slower_than_measured_is_believed_within_minutes():
    slower = {side: 1.6 * each for side, each in SECONDS.items()}
    found = run(Eta(DEMO, phase_times(SECONDS), 0, 0.0), slower)
    assert worst(found, total(slower), 60) < 0.1


@pytest.mark.parametrize("off", [{4: 3.0}, {32: 1.25}, {4: 2.0, 8: 1.5, 16: 0.7}])
def test_wrong_measurements_of_single_levels_are_outweighed(off):
    """The promise for a run on a CPU: within 25 % after one minute."""
    measured = {side: each * off.get(side, 1.0) for side, each in SECONDS.items()}
    found = run(Eta(DEMO, phase_times(measured), 0, 0.0), SECONDS)
    assert worst(found, total(SECONDS), 60) < 0.25
    assert worst(found, total(SECONDS), 180) < 0.1


def test_without_a_measurement_the_first_tick_sets_the_scale():
    relative = {side: 1000 * each for side, each in SECONDS.items()}
    found = run(Eta(DEMO, phase_times(relative, measured=False), 0, 0.0), SECONDS)
    assert found[0][1] == pytest.approx(total(SECONDS))
    assert Eta(DEMO, phase_times(relative, measured=False), 0, 0.0).correction == 1.0


# (images, seconds) of a run of the demo beside work that came and went: four times as slow as measured.
BUSY = [
    *((1008, 1.7), (2000, 4.3), (3008, 7.6), (4000, 10.8), (5008, 15.4), (6000, 25.3), (7008, 37.8), (8000, 49.8)),
    *((9008, 64.8), (13008, 121.5), (17008, 169.3), (21008, 238.4), (25008, 318.2), (29008, 362.8), (33008, 414.9)),
    *((37008, 474.8), (41008, 518.2), (45008, 569.0), (49008, 611.7), (53008, 689.2), (58512, 845.5)),
]
QUIET = {4: 0.0009, 8: 0.0016, 16: 0.0027, 32: 0.0041}  # seconds of an image on quiet cores


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_a_recorded_run_is_predicted(times):
    """Of the whole run, after one minute and after three; `times`: measured updates over those of quiet cores."""
    eta = Eta(DEMO, phase_times({side: times * each for side, each in QUIET.items()}), 0, 0.0)
    found = []
    for images, now in BUSY:
        eta.observe(images, now)
        found.append((now, now + eta.seconds_left(images)))
    assert worst(found, BUSY[-1][1], 60) < 0.25
    assert worst(found, BUSY[-1][1], 180) < 0.2


def test_evaluations_with_a_share_of_the_time_are_planned_and_not_taken_for_slow_steps():
    seconds, share = phase_times(SECONDS).seconds(DEMO, 0, DEMO.total), 0.05
    eta = Eta(DEMO, phase_times(SECONDS), 0, 0.0, evaluation_share=share)
    assert eta.seconds_left(0) == pytest.approx(seconds / (1 - share))
    assert eta.images_after(seconds / (1 - share) + 1e-9, 0) == DEMO.total
    eta.evaluated(7.0)
    eta.observe(1000, 7.0 + 1000 * SECONDS[4])
    assert eta.seconds_left(1000) == pytest.approx((seconds - 1000 * SECONDS[4]) / (1 - share))
    given_images = Eta(DEMO, phase_times(SECONDS), 0, 0.0)  # how many there will be is not known
    given_images.evaluated(7.0)
    given_images.observe(1000, 7.0 + 1000 * SECONDS[4])
    assert given_images.seconds_left(1000) > 2 * seconds


def test_a_rollback_and_a_resume_count_what_is_trained_from_there():
    eta = Eta(DEMO, phase_times(dict.fromkeys(SECONDS, 0.5)), 2000, 100.0)
    eta.restart(1000, 400.0)
    eta.observe(1010, 405.0)
    assert eta.correction == pytest.approx(1.0)
    assert eta.seconds_left(1010) == pytest.approx(0.5 * (DEMO.total - 1010))


NOON = datetime(2026, 3, 1, 12, 0)


def test_the_end_is_said_as_a_time_of_day():
    eta = Eta(DEMO, phase_times(SECONDS), 0, 0.0)
    assert expected_end(eta, 0, NOON) == "about 4.73 min, until 12:04 (measured)"
    assert expected_end(Eta(DEMO, phase_times(SECONDS), 0, 0.0), DEMO.total, NOON) == "none: all images have been shown"
    endless = phase_times(dict.fromkeys(SECONDS, 1e9), measured=False)
    ages = expected_end(Eta(DEMO, endless, 0, 0.0), 0, NOON)
    assert ages.endswith("on 25 March 2121 (a first guess, by operations)")  # as far as a calendar goes


# ---- runs of more than a day -------------------------------------------------------------------------------


SLOW = phase_times({side: 3600 * each for side, each in SECONDS.items()})


def test_a_run_of_more_than_a_day_is_told_how_it_could_end_in_hours():
    (said,) = too_long(Eta(DEMO, SLOW, 0, 0.0))
    assert "about 11.8 d here. hours=8 " in said
    (proposed,) = (word for word in said.split() if word.startswith("schedule.total_images="))
    shorter = replace(DEMO, total_images=int(proposed.partition("=")[2]))
    assert 7.2 < Eta(shorter, SLOW, 0, 0.0).seconds_left(0) / 3600 <= 8
    assert too_long(Eta(DEMO, phase_times(SECONDS), 0, 0.0)) == []


# ---- hours= -----------------------------------------------------------------------------------------------

SCHEDULE = Schedule(
    first_resolution=4, final_resolution=8, stable_images={4: 1000, 8: 8000}, fade_images={8: 1000}, **TABLES
)
PHASE_TIMES = PhaseTimes((0.01, 0.04, 0.04), measured=frozenset({4}))  # so the schedule takes 370 s
HOURS = 400 / 3600


def train(times, schedule=SCHEDULE, *, spent=0.0, images=0, stop=10**9, phases=None):
    """(images, seconds, limit) of a run that takes so many `times` what was expected, with a tick every 160 images.

    Args: phases: is given the phase of every step, by the images shown before.
    """
    eta, now = Eta(schedule, PHASE_TIMES, images, 0.0), 0.0
    limit = TimeLimit(HOURS, eta, now, spent, schedule)
    while images < eta.schedule.total and images < stop:
        phase = eta.schedule.at(images)
        if phases is not None:
            phases[images] = phase
        images, now = images + phase.batch, now + phase.batch * times * PHASE_TIMES.seconds_per_image[phase.index]
        if images % 160 == 0 and images < eta.schedule.total:
            limit.plan(images, now)
    return images, now, limit


def last_image(limit, images, now, reserve=0.0):
    """The image count at which a run is then to end."""
    limit.plan(images, now, reserve)
    return limit.eta.schedule.total


@pytest.mark.parametrize("times", [0.2, 1.5, 20.0])
def test_the_end_comes_within_a_tenth_of_the_hours(times):
    images, seconds, _ = train(times)
    assert seconds == pytest.approx(TRAINING_SHARE * 400, rel=0.07)
    assert (images > SCHEDULE.total) == (times <= 1)


@pytest.mark.parametrize("times", [0.2, 1.5, 20.0])
def test_a_run_whose_learning_rate_falls_ends_in_time_too(times):
    """On a slow machine, its fall is shorter than asked for, and no rate that was used is another one afterwards."""
    phases = {}
    _, seconds, limit = train(times, replace(SCHEDULE, lr_decay_images=3000), phases=phases)
    rates = {images: phase.learning_rate_g for images, phase in phases.items()}
    assert seconds == pytest.approx(400, rel=0.1)
    end = limit.eta.schedule
    if times < 20:  # where a tick takes a seventh of the hours, they are over in the fall
        assert {at: end.at(at).learning_rate_g for at in rates} == rates
    assert rates[max(rates)] < 0.1 * rates[0]


@pytest.mark.parametrize("slower", [1.0, 4.0])
def test_a_machine_that_becomes_slower_while_the_rates_fall_ends_in_time_too(slower):
    """What a step is trained with depends on the planned end alone, so a resumed run goes on with the same rates."""
    schedule, rates, now, images = replace(SCHEDULE, lr_decay_images=1000), [], 0.0, 0
    eta = Eta(schedule, PHASE_TIMES, images, now)
    limit = TimeLimit(HOURS, eta, now, 0.0, schedule)
    ends = []  # planned in the fall
    while images < eta.schedule.total:
        phase, falls = eta.schedule.at(images), images >= eta.schedule.total - eta.schedule.decay_images
        rates.append(phase.learning_rate_g)
        times = slower if falls else 1.0
        images, now = images + phase.batch, now + phase.batch * times * PHASE_TIMES.seconds_per_image[phase.index]
        if images % 80 == 0 and images < eta.schedule.total:
            limit.plan(images, now)
            ends += [eta.schedule.total] * falls
    assert now < 1.1 * 400
    assert now > TRAINING_SHARE * 400 - 1
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] < 0.02 * rates[0]
    assert ends == sorted(ends, reverse=True)
    assert (len(set(ends)) == 1) == (slower == 1)


def test_a_resumed_run_has_the_time_that_is_left():
    images, seconds, limit = train(1.0, stop=4000)
    schedule = replace(SCHEDULE, total_images=limit.eta.schedule.total)
    _, rest, _ = train(2.0, schedule, spent=limit.spent_seconds(seconds), images=images)
    assert seconds + rest == pytest.approx(TRAINING_SHARE * 400, rel=0.07)


def test_a_run_that_has_no_time_left_takes_one_more_step():
    eta = Eta(SCHEDULE, PHASE_TIMES, 500, 0.0)
    assert last_image(TimeLimit(HOURS, eta, 0.0, 1000.0, SCHEDULE), 500, 1.0) == 501


def test_the_end_stays_from_where_the_learning_rate_falls():
    """So a run of as many images, without hours, has the same learning rates, and repeats every bit."""
    schedule = replace(SCHEDULE, lr_decay_images=3000)
    images, _, limit = train(0.8, schedule)
    end = limit.eta.schedule
    assert images >= end.total > schedule.total
    assert end.at(end.total - end.decay_images - 1).learning_rate_g == TABLES["learning_rate_g"][4]
    eta = Eta(schedule, PHASE_TIMES, 7500, 0.0)  # the rate falls from 7000 on
    assert last_image(TimeLimit(HOURS, eta, 0.0, 0.0, schedule), 7500, 1.0) == schedule.total
    assert last_image(TimeLimit(HOURS, eta, 0.0, 1000.0, schedule), 6900, 1.0) <= 6900 + 1 + 3000


# ---- growth on a machine that is too slow for it -----------------------------------------------------------

# As configured, growth takes 180 of 500 s.
GROWING = replace(SCHEDULE, stable_images={4: 2000, 8: 5500}, fade_images={8: 4000}, lr_decay_images=1500)
SHARE = 0.725  # of the hours for growth: half of the rest goes to 8x8


@pytest.mark.parametrize("times", [1.0, 8.0])
def test_growth_keeps_to_its_share_of_the_hours_on_a_slower_machine(times):
    """Phases that have begun stay as they are, and what is planned in the end is what every step was trained with."""
    phases = {}
    _, seconds, limit = train(times, GROWING, phases=phases)
    end = limit.eta.schedule
    assert {at: end.at(at) for at in phases} == phases
    assert seconds == pytest.approx(400, rel=0.1)
    grown = PHASE_TIMES.seconds(end, 0, end.phases[-1].start) * times
    assert grown <= 1.1 * SHARE * 400  # the correction comes closer to the times with every tick
    assert (end.growth_images == GROWING.growth_images) == (times < 1.5)
    assert end.growth_images[0] == GROWING.growth_images[0]  # it had begun before the machine was known
    assert end.phases[-1].start < end.total - end.decay_images  # no rate falls while the networks grow


def test_a_checkpoint_has_the_plan_and_a_run_resumes_with_it():
    _, _, limit = train(4.0, GROWING, stop=1600)
    planned = limit.eta.schedule
    assert with_plan(GROWING, json.loads(json.dumps(limit.planned))) == replace(
        planned, stable_images={4: 2000, 8: 5500}, batch=GROWING.batch
    )
    assert with_plan(GROWING, {"total_images": 700}) == replace(GROWING, total_images=700)
    other_phases = replace(GROWING, first_resolution=8)
    assert with_plan(other_phases, limit.planned).growth_images == other_phases.growth_images
