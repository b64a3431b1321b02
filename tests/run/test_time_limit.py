"""A run that was given hours ends in time, on machines that turn out faster or slower."""

import json
from dataclasses import replace

import pytest

from pggan.core.schedule import Schedule
from pggan.run.eta import TRAINING_SHARE, Eta, TimeLimit, with_plan
from pggan.training.timing import PhaseTimes

TABLES = {key: {4: 16} for key in ("batch", "learning_rate_g", "learning_rate_d")}
SCHEDULE = Schedule(
    first_resolution=4, final_resolution=8, stable_images={4: 1000, 8: 8000}, fade_images={8: 1000}, **TABLES
)
PHASE_TIMES = PhaseTimes((0.01, 0.04, 0.04), measured=frozenset({4}))  # so the schedule takes 370 s
HOURS = 400 / 3600


def train(
    times,
    schedule=SCHEDULE,
    *,
    spent=0.0,
    images=0,
    stop=10**9,
    phases=None,
    configured=None,
    each=PHASE_TIMES,
):
    """(images, seconds, limit) of a run that takes so many `times` what was expected, with a tick every 160 images.

    Args: phases: is given the phase of every step, by the images shown before; each: seconds of an image.
    """
    eta, now = Eta(schedule, each, images, 0.0), 0.0
    limit = TimeLimit(HOURS, eta, now, spent, configured or schedule)
    while images < eta.schedule.total and images < stop:
        phase = eta.schedule.at(images)
        if phases is not None:
            phases[images] = phase
        slower = times(images) if callable(times) else times
        images, now = images + phase.batch, now + phase.batch * slower * each.seconds_per_image[phase.index]
        if images % 160 == 0 and images < eta.schedule.total:
            limit.plan(images, now)
    return images, now, limit


def last_image(limit, images, now, reserve=0.0):
    """The image count at which a run is then to end."""
    limit.plan(images, now, reserve)
    return limit.eta.schedule.total


@pytest.mark.parametrize("times", [0.2, 0.7, 1.0, 1.5, 4.0, 20.0])
def test_the_end_comes_within_a_tenth_of_the_hours(times):
    images, seconds, _ = train(times)
    assert seconds == pytest.approx(TRAINING_SHARE * 400, rel=0.07)
    assert (images > SCHEDULE.total) == (times <= 1)


@pytest.mark.parametrize("times", [0.2, 0.7, 1.0, 1.5, 4.0, 20.0])
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


@pytest.mark.parametrize("slower", [1.0, 2.0, 4.0])
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


@pytest.mark.parametrize("times", [1.0, 2.5, 4.0, 8.0])
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


@pytest.mark.parametrize("times", [0.5, 1.0, 2.5, 8.0])
def test_the_fall_of_the_rates_keeps_its_share_of_the_last_phase(times):
    """As configured 1,500 of 5,500 images; its end was planned when it began, and the machine has not changed since."""
    phases = {}
    _, _, limit = train(times, GROWING, phases=phases)
    end = limit.eta.schedule
    assert end.lr_decay_images / (end.total - end.phases[-1].start) == pytest.approx(1500 / 5500, rel=0.1)
    falls = [at for at, phase in phases.items() if phase.learning_rate_g < GROWING.at(0).learning_rate_g]
    assert min(falls) == pytest.approx(end.total - end.lr_decay_images, abs=16)


def test_growth_is_as_configured_again_where_the_machine_was_slow_for_a_while():
    """With three times what was expected of 1,600 images, 48 s, it would leave no time for 8x8."""
    schedule = replace(GROWING, stable_images={4: 12_000, 8: 5500}, fade_images={8: 1000})

    def times(images):
        return 3.0 if images < 1600 else 1.0

    _, _, limit = train(times, schedule, stop=1600)
    assert limit.eta.schedule.growth_images == (12_000, 16)
    _, seconds, limit = train(times, schedule)
    assert limit.eta.schedule.growth_images == schedule.growth_images
    assert seconds == pytest.approx(TRAINING_SHARE * 400, rel=0.07)


def test_a_checkpoint_has_the_plan_and_a_run_resumes_with_it():
    _, _, limit = train(4.0, GROWING, stop=1600)
    planned = limit.eta.schedule
    assert with_plan(GROWING, json.loads(json.dumps(limit.planned))) == replace(
        planned, stable_images={4: 2000, 8: 5500}, batch=GROWING.batch
    )
    assert with_plan(GROWING, {"total_images": 700}) == replace(GROWING, total_images=700)
    other_phases = replace(GROWING, first_resolution=8)
    assert with_plan(other_phases, limit.planned).growth_images == other_phases.growth_images
